// SPDX-License-Identifier: Apache-2.0

#include "src/optim/device_update_cuda.h"

#include <cuda_runtime_api.h>

#include "src/optim/adamw_cuda.h"
#include "src/optim/adamw_of_run.h"
#include "tiers/cuda_device_cuda.h"

namespace spillway::optim {

absl::Status LaunchUpdateOnCuda(int index, void* stream, const RuleFactors& factors,
                                const FusedRun& first_row, int64_t rows) {
  return tiers::OnGpu(index, "launching an update of AdamW", [&] {
    CodeTables tables;
    if (first_row.format == StateFormat::k8Bit) {
      const cudaError_t error = FindCodeTables(tables.values);
      if (error != cudaSuccess) return error;
    }
    return WithAdamWKernel(factors, first_row, rows, tables, [&](const auto& kernel) {
      return Launch(kernel, static_cast<cudaStream_t>(stream));
    });
  });
}

absl::Status LaunchNanOnCuda(int index, void* stream, std::byte* from, uint64_t size_bytes) {
  return tiers::OnGpu(index, "filling device memory", [&] {
    return cudaMemsetAsync(from, 0xFF, size_bytes, static_cast<cudaStream_t>(stream));
  });
}

}  // namespace spillway::optim
