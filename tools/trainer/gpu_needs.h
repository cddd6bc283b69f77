// SPDX-License-Identifier: Apache-2.0
//
// What a model needs of a GPU before its engine takes the GPU's memory: room for scratch, and an
// algorithm for each product. A dry walk through GpuCompute finds both.

#ifndef SPILLWAY_TOOLS_TRAINER_GPU_NEEDS_H_
#define SPILLWAY_TOOLS_TRAINER_GPU_NEEDS_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/hf/config.h"
#include "tools/trainer/compute/gpu/product_call.h"
#include "tools/trainer/model.h"

namespace spillway::trainer {

struct GpuNeeds {
  uint64_t scratch_bytes = 0;
  // Of a training step, unless the model is not trained, and of an evaluation of `micro_batch`
  // windows; each once. A window of another length, as generation has, needs others.
  std::vector<gpu::ProductCall> products;
};

// The scratch alone, which takes no walk. InvalidArgument as CheckOptions.
absl::StatusOr<uint64_t> GpuScratchBytes(const hf::ModelConfig& config,
                                         const ModelOptions& options);

// InvalidArgument as CheckOptions.
absl::StatusOr<GpuNeeds> GpuNeedsOf(const hf::ModelConfig& config, const ModelOptions& options);

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_GPU_NEEDS_H_
