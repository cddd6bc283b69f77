// SPDX-License-Identifier: Apache-2.0

#ifndef SPILLWAY_OPTIM_ADAMW_CUDA_H_
#define SPILLWAY_OPTIM_ADAMW_CUDA_H_

#include <cuda_runtime_api.h>

#include "src/optim/adamw_kernel.h"

namespace spillway::optim {

// Launches an update on a stream.
cudaError_t Launch(const AdamW<SeparateState<false>>& update, cudaStream_t stream);
cudaError_t Launch(const AdamW<SeparateState<true>>& update, cudaStream_t stream);
cudaError_t Launch(const AdamW<BlockState>& update, cudaStream_t stream);
cudaError_t Launch(const AdamW<CompactState>& update, cudaStream_t stream);

}  // namespace spillway::optim

#endif  // SPILLWAY_OPTIM_ADAMW_CUDA_H_
