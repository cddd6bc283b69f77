// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/train/computing.h"

#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "src/base/status_macros.h"
#include "tools/spillway/gpu/open_gpu.h"
#include "tools/spillway/train/placement_flags.h"
#include "tools/trainer/compute/host_compute.h"
#include "tools/trainer/gpu_needs.h"

namespace spillway::command {
namespace {

// Returns the error with the flag that it is about.
absl::Status OfDevice(int index, const absl::Status& error, const char* cure = "") {
  return absl::Status(error.code(), absl::StrFormat("--device cuda:%d: %s%s", index,
                                                    std::string(error.message()), cure));
}

}  // namespace

absl::StatusOr<std::unique_ptr<trainer::GpuCompute>> OpenGpuFor(const EngineFlags& flags,
                                                                DType elements) {
  if (flags.device.kind() != Device::Kind::kCuda) return nullptr;
  auto device = OpenGpu(flags.device.index(), flags.cublaslt);
  if (!device.ok()) return OfDevice(flags.device.index(), device.status());
  return std::make_unique<trainer::GpuCompute>(*std::move(device), elements);
}

absl::Status PrepareGpu(trainer::GpuCompute* gpu, const hf::ModelConfig& config,
                        const trainer::ModelOptions& options, EngineFlags* flags) {
  if (gpu == nullptr) return absl::OkStatus();
  const int index = flags->device.index();
  SPILLWAY_ASSIGN_OR_RETURN(const trainer::GpuNeeds needs, trainer::GpuNeedsOf(config, options));
  SPILLWAY_ASSIGN_OR_RETURN(const Placement placement, PlacementOf(flags->placement));
  const uint64_t budget_bytes =
      flags->device_bytes != kUnlimited
          ? flags->device_bytes
          : trainer::SmallestBudgets(config, options, placement).device_bytes;
  const absl::Status prepared = gpu->Prepare(needs.scratch_bytes, needs.products, budget_bytes);
  if (absl::IsResourceExhausted(prepared)) {
    return OfDevice(index, prepared, "; use a smaller --device-bytes, --seq or --batch");
  }
  if (!prepared.ok()) return OfDevice(index, prepared);
  flags->device = gpu->tier();
  return absl::OkStatus();
}

void TellWhatComputes(const trainer::GpuCompute* gpu) {
  if (gpu == nullptr) return;
  const trainer::ComputedBy by = *gpu->computed_by();
  absl::FPrintF(stderr, "note: computes on %s, with %s\n", by.gpu, by.library);
}

absl::StatusOr<std::unique_ptr<trainer::Compute>> BeginComputing(
    std::unique_ptr<trainer::GpuCompute> gpu, Engine* engine, ThreadPool* pool) {
  if (gpu == nullptr) return trainer::HostCompute::Create(pool);
  SPILLWAY_RETURN_IF_ERROR(gpu->Begin(engine));
  return gpu;
}

}  // namespace spillway::command
