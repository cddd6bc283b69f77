// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/dry_run.h"

#include <memory>

#include "absl/status/status.h"
#include "src/base/status_macros.h"
#include "tools/trainer/compute/dry_compute.h"
#include "tools/trainer/dry_walk.h"

namespace spillway::trainer {

absl::StatusOr<RecordedStep> RecordStep(const hf::ModelConfig& config, const ModelOptions& options,
                                        StepKind kind, const Placement& placement) {
  if (kind == StepKind::kTraining && !options.training) {
    return absl::InvalidArgumentError("a training step of a model that is not trained");
  }
  RecordingEngine engine(placement);
  DryCompute compute;
  SPILLWAY_ASSIGN_OR_RETURN(const std::unique_ptr<DryWalk> dry,
                            DryWalk::Create(&engine, &compute, config, options));
  if (kind == StepKind::kEvaluation) {
    SPILLWAY_RETURN_IF_ERROR(dry->Evaluate(/*windows=*/1));
  } else {
    SPILLWAY_RETURN_IF_ERROR(dry->Train());
    SPILLWAY_RETURN_IF_ERROR(dry->Update());
  }
  return RecordedStep{.tensors = engine.specs(), .events = engine.TakeEvents()};
}

}  // namespace spillway::trainer
