// SPDX-License-Identifier: Apache-2.0
//
// The functions of device_update.h on the streams of a GPU. `stream` is a cudaStream_t of the GPU
// `index`. A GPU that is lost is Aborted.

#ifndef SPILLWAY_OPTIM_DEVICE_UPDATE_CUDA_H_
#define SPILLWAY_OPTIM_DEVICE_UPDATE_CUDA_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "src/optim/fused_update.h"
#include "src/optim/rule_kernels.h"

namespace spillway::optim {

absl::Status LaunchUpdateOnCuda(int index, void* stream, const RuleFactors& factors,
                                const FusedRun& first_row, int64_t rows);

absl::Status LaunchNanOnCuda(int index, void* stream, std::byte* from, uint64_t size_bytes);

}  // namespace spillway::optim

#endif  // SPILLWAY_OPTIM_DEVICE_UPDATE_CUDA_H_
