// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/gpu_needs.h"

#include <memory>

#include "src/base/status_macros.h"
#include "tools/trainer/compute/gpu/planning_device.h"
#include "tools/trainer/compute/gpu_compute.h"
#include "tools/trainer/dry_walk.h"
#include "tools/trainer/recording_engine.h"

namespace spillway::trainer {

absl::StatusOr<uint64_t> GpuScratchBytes(const hf::ModelConfig& config,
                                         const ModelOptions& options) {
  RecordingEngine engine;
  gpu::PlanningDevice::Record record;
  GpuCompute compute(std::make_unique<gpu::PlanningDevice>(&record),
                     ElementType(options.precision));
  SPILLWAY_RETURN_IF_ERROR(DryWalk::Create(&engine, &compute, config, options).status());
  return compute.scratch_bytes();
}

absl::StatusOr<GpuNeeds> GpuNeedsOf(const hf::ModelConfig& config, const ModelOptions& options) {
  RecordingEngine engine;
  gpu::PlanningDevice::Record record;
  GpuCompute compute(std::make_unique<gpu::PlanningDevice>(&record),
                     ElementType(options.precision));
  SPILLWAY_ASSIGN_OR_RETURN(const std::unique_ptr<DryWalk> dry,
                            DryWalk::Create(&engine, &compute, config, options));
  if (options.training) SPILLWAY_RETURN_IF_ERROR(dry->Train());
  SPILLWAY_RETURN_IF_ERROR(dry->Evaluate(options.micro_batch));
  SPILLWAY_RETURN_IF_ERROR(compute.Collect().status());
  return GpuNeeds{.scratch_bytes = compute.scratch_bytes(),
                  .products = {record.products.begin(), record.products.end()}};
}

}  // namespace spillway::trainer
