// SPDX-License-Identifier: Apache-2.0
//
// What computes a model for the command: the host's threads, or the GPU of --device. A GPU is
// opened, and its scratch and algorithms are taken, before an engine takes the rest of its memory.

#ifndef SPILLWAY_TOOLS_SPILLWAY_TRAIN_COMPUTING_H_
#define SPILLWAY_TOOLS_SPILLWAY_TRAIN_COMPUTING_H_

#include <memory>

#include "absl/status/statusor.h"
#include "spillway/engine.h"
#include "spillway/thread_pool.h"
#include "tools/hf/config.h"
#include "tools/spillway/train/engine_flags.h"
#include "tools/trainer/compute/compute.h"
#include "tools/trainer/compute/gpu_compute.h"
#include "tools/trainer/model.h"

namespace spillway::command {

// Opens the GPU of the flags, for elements of that type; null on the host. Unimplemented: see
// OpenGpu.
absl::StatusOr<std::unique_ptr<trainer::GpuCompute>> OpenGpuFor(const EngineFlags& flags,
                                                                DType elements);

// Takes the GPU's scratch and algorithms, if `gpu` is not null, and sets the flags' device to where
// the engine's device tier must lie. ResourceExhausted: the GPU has no room for scratch beside the
// budget. Unimplemented: a product has no algorithm.
absl::Status PrepareGpu(trainer::GpuCompute* gpu, const hf::ModelConfig& config,
                        const trainer::ModelOptions& options, EngineFlags* flags);

// Says on stderr which GPU computes, if one does.
void TellWhatComputes(const trainer::GpuCompute* gpu);

// Begins to compute over an engine: on the GPU, or if that is null on the pool.
absl::StatusOr<std::unique_ptr<trainer::Compute>> BeginComputing(
    std::unique_ptr<trainer::GpuCompute> gpu, Engine* engine, ThreadPool* pool);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_TRAIN_COMPUTING_H_
