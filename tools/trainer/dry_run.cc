// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/dry_run.h"

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "spillway/optimizer.h"
#include "spillway/thread_pool.h"
#include "src/base/status_macros.h"
#include "tools/trainer/activations.h"
#include "tools/trainer/compute/dry_compute.h"
#include "tools/trainer/description.h"
#include "tools/trainer/parameters.h"
#include "tools/trainer/updates.h"
#include "tools/trainer/walk.h"

namespace spillway::trainer {

absl::StatusOr<RecordedStep> RecordStep(const hf::ModelConfig& config, const ModelOptions& options,
                                        StepKind kind) {
  SPILLWAY_RETURN_IF_ERROR(CheckOptions(options));
  if (kind == StepKind::kTraining && !options.training) {
    return absl::InvalidArgumentError("a training step of a model that is not trained");
  }
  RecordingEngine engine;
  DryCompute compute;
  const Description model = Describe(config);
  SPILLWAY_ASSIGN_OR_RETURN(const std::vector<Parameter> parameters,
                            RegisterParameters(&engine, config, options, WeightSource()));
  SPILLWAY_ASSIGN_OR_RETURN(const SavedTensors saved, RegisterActivations(&engine, model, options));
  SPILLWAY_ASSIGN_OR_RETURN(const std::unique_ptr<Walk> walk,
                            Walk::Create({.engine = &engine,
                                          .compute = &compute,
                                          .model = &model,
                                          .options = &options,
                                          .parameters = parameters,
                                          .saved = &saved}));
  if (kind == StepKind::kEvaluation) {
    SPILLWAY_RETURN_IF_ERROR(walk->Evaluate(/*windows=*/1, {}, {}));
  } else {
    ThreadPool pool(1);
    SPILLWAY_ASSIGN_OR_RETURN(
        const std::unique_ptr<Optimizer> optimizer,
        Optimizer::Create(&engine, &pool, options.rule, options.state_format));
    SPILLWAY_ASSIGN_OR_RETURN(const ListedUpdates listed,
                              AddTrained(optimizer.get(), options, parameters, /*weight_decay=*/0));
    SPILLWAY_RETURN_IF_ERROR(walk->Train({}));
    SPILLWAY_RETURN_IF_ERROR(optimizer->Step(listed.updates));
  }
  return RecordedStep{.tensors = engine.specs(), .events = engine.TakeEvents()};
}

}  // namespace spillway::trainer
