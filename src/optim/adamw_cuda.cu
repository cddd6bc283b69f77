// SPDX-License-Identifier: Apache-2.0

#include "src/optim/adamw_cuda.h"
#include "src/optim/code_levels.h"
#include "src/simt/gpu_block.cuh"

namespace spillway::optim {
namespace {

__device__ CodeTable signed_values = MakeCodeTable(CodeMap::kSigned);
__device__ CodeTable unsigned_values = MakeCodeTable(CodeMap::kUnsigned);

}  // namespace

cudaError_t FindCodeTables(const float* tables[2]) {
  void* found[2] = {};
  cudaError_t error = cudaGetSymbolAddress(&found[0], signed_values);
  if (error == cudaSuccess) error = cudaGetSymbolAddress(&found[1], unsigned_values);
  for (int i = 0; i < 2; ++i) tables[i] = static_cast<const float*>(found[i]);
  return error;
}

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
