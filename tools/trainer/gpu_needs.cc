// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/gpu_needs.h"

#include <memory>
#include <vector>

#include "src/base/status_macros.h"
#include "tools/trainer/activations.h"
#include "tools/trainer/compute/gpu/planning_device.h"
#include "tools/trainer/compute/gpu_compute.h"
#include "tools/trainer/description.h"
#include "tools/trainer/parameters.h"
#include "tools/trainer/recording_engine.h"
#include "tools/trainer/walk.h"

namespace spillway::trainer {

absl::StatusOr<GpuNeeds> GpuNeedsOf(const hf::ModelConfig& config, const ModelOptions& options) {
  SPILLWAY_RETURN_IF_ERROR(CheckOptions(options));
  RecordingEngine engine;
  gpu::PlanningDevice::Record record;
  GpuCompute compute(std::make_unique<gpu::PlanningDevice>(&record),
                     ElementType(options.precision));
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
  if (options.training) SPILLWAY_RETURN_IF_ERROR(walk->Train({}));
  SPILLWAY_RETURN_IF_ERROR(walk->Evaluate(options.micro_batch, {}, {}));
  SPILLWAY_RETURN_IF_ERROR(compute.Collect().status());
  return GpuNeeds{.scratch_bytes = compute.scratch_bytes(),
                  .products = {record.products.begin(), record.products.end()}};
}

}  // namespace spillway::trainer
