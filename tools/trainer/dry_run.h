// SPDX-License-Identifier: Apache-2.0
//
// Lists what a step leases before any step has run. It is the walk of training itself, over an
// engine that only records and a Compute that does nothing, followed by the optimizer's own update;
// so the list is what a run does, event by event. No memory is taken for tiles or scratch.

#ifndef SPILLWAY_TOOLS_TRAINER_DRY_RUN_H_
#define SPILLWAY_TOOLS_TRAINER_DRY_RUN_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "spillway/types.h"
#include "tools/hf/config.h"
#include "tools/trainer/model.h"
#include "tools/trainer/recording_engine.h"

namespace spillway::trainer {

// kTraining: forward, backward and update of a step. kEvaluation: forward over one window.
enum class StepKind : uint8_t { kTraining, kEvaluation };

struct RecordedStep {
  std::vector<TensorSpec> tensors;  // by id, in the order in which a run registers them
  std::vector<LeaseEvent> events;   // leases, their ends and discards, in order
};

// Records a step of a model whose roles rest there. Takes 12 bytes for each event. InvalidArgument:
// the options are not those of a model, or a training step is asked for and options.training is
// false.
absl::StatusOr<RecordedStep> RecordStep(const hf::ModelConfig& config, const ModelOptions& options,
                                        StepKind kind = StepKind::kTraining,
                                        const Placement& placement = {});

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_DRY_RUN_H_
