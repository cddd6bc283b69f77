// SPDX-License-Identifier: Apache-2.0

#include "src/optim/adamw_cuda.h"
#include "src/simt/gpu_block.cuh"

namespace spillway::optim {

cudaError_t Launch(const AdamW<SeparateState<false>>& update, cudaStream_t stream) {
  return simt::Launch(update, stream);
}
cudaError_t Launch(const AdamW<SeparateState<true>>& update, cudaStream_t stream) {
  return simt::Launch(update, stream);
}
cudaError_t Launch(const AdamW<BlockState>& update, cudaStream_t stream) {
  return simt::Launch(update, stream);
}
cudaError_t Launch(const AdamW<CompactState>& update, cudaStream_t stream) {
  return simt::Launch(update, stream);
}

}  // namespace spillway::optim
