// SPDX-License-Identifier: Apache-2.0
//
// A model's walk over an engine that records, and all that it needs. What steps lease, how long
// they compute and what they need of a device are found this way, before any step has run.

#ifndef SPILLWAY_TOOLS_TRAINER_DRY_WALK_H_
#define SPILLWAY_TOOLS_TRAINER_DRY_WALK_H_

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spillway/engine.h"
#include "tools/hf/config.h"
#include "tools/trainer/activations.h"
#include "tools/trainer/compute/compute.h"
#include "tools/trainer/description.h"
#include "tools/trainer/model.h"
#include "tools/trainer/walk.h"

namespace spillway::trainer {

// Thread-compatible.
class DryWalk {
 public:
  // Registers the model's tensors without bytes, and reserves the Compute's scratch. All arguments
  // must outlive it. InvalidArgument as CheckOptions.
  static absl::StatusOr<std::unique_ptr<DryWalk>> Create(Engine* engine, Compute* compute,
                                                         const hf::ModelConfig& config,
                                                         const ModelOptions& options);

  // Walks forward and backward for a step, whose tokens are not needed. REQUIRES: options.training.
  absl::Status Train() { return walk_->Train({}); }
  // Walks forward, up to the loss, over so many windows.
  absl::Status Evaluate(int64_t windows) { return walk_->Evaluate(windows, {}, {}); }
  // Runs the optimizer's update of every trained parameter, on the device where options.on_gpu and
  // the engine's placement say so.
  absl::Status Update();

 private:
  DryWalk(Engine* engine, const hf::ModelConfig& config, const ModelOptions& options)
      : engine_(engine), options_(options), model_(Describe(config)) {}

  Engine* const engine_;
  const ModelOptions& options_;
  const Description model_;
  std::vector<Parameter> parameters_;
  SavedTensors saved_;
  std::unique_ptr<Walk> walk_;
};

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_DRY_WALK_H_
