// SPDX-License-Identifier: Apache-2.0

#ifndef SPILLWAY_OPTIM_ADAMW_CUDA_H_
#define SPILLWAY_OPTIM_ADAMW_CUDA_H_

#include <cuda_runtime_api.h>

#include "src/optim/adamw_kernel.h"

namespace spillway::optim {

// Finds CodeValues in the current GPU's memory: of kSigned, which AdamW's first moment has, and of
// kUnsigned, which its second has.
cudaError_t FindCodeTables(const float* tables[2]);

// Launches an update on a stream of the current GPU.
cudaError_t Launch(const AdamW<SeparateState<false>>& update, cudaStream_t stream);
cudaError_t Launch(const AdamW<SeparateState<true>>& update, cudaStream_t stream);
cudaError_t Launch(const AdamW<BlockState>& update, cudaStream_t stream);
cudaError_t Launch(const AdamW<CompactState>& update, cudaStream_t stream);

}  // namespace spillway::optim

#endif  // SPILLWAY_OPTIM_ADAMW_CUDA_H_
