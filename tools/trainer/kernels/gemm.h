// SPDX-License-Identifier: Apache-2.0
//
// Matrix products through CBLAS, divided between threads here and not in the library: the division
// depends only on the shape and the thread count, so every run gives the same numbers. The summed
// dimension is never divided. Only a process that multiplies loads the library: loading takes 30 ms
// and memory, and hangs if there is no memory.

#ifndef SPILLWAY_TOOLS_TRAINER_KERNELS_GEMM_H_
#define SPILLWAY_TOOLS_TRAINER_KERNELS_GEMM_H_

#include <cstdint>

#include "absl/status/status.h"
#include "spillway/thread_pool.h"
#include "tools/trainer/compute/into.h"

namespace spillway::trainer {

// A row-major fp32 matrix with `stride` elements from row to row. If `transposed`, the product uses
// its transpose.
struct MatrixView {
  const float* data = nullptr;
  int64_t stride = 0;
  bool transposed = false;
};

inline MatrixView Plain(const float* data, int64_t stride) { return {data, stride, false}; }
inline MatrixView Transposed(const float* data, int64_t stride) { return {data, stride, true}; }

struct ProductShape {
  int64_t rows = 0;     // of the result
  int64_t columns = 0;  // of the result
  int64_t inner = 0;    // the summed dimension
};

// Loads OpenBLAS, which then runs on the calling thread only, and allocates its buffers for
// `num_threads` threads. Later calls do nothing and return the status of the first. REQUIRES:
// called before the first product, and from one thread. Unimplemented if OpenBLAS cannot be loaded,
// or if the process may not have that memory (OpenBLAS itself would wait for it forever).
absl::Status LoadBlas(int num_threads);

// Computes c[rows, columns] = a·b, or c += a·b, on the calling thread. REQUIRES: no dimension
// exceeds 2^31 - 1.
void Multiply(const ProductShape& shape, const MatrixView& a, const MatrixView& b, Into into,
              float* c, int64_t c_stride);

// Does the same with the result divided into one part per thread.
void ParallelMultiply(ThreadPool* pool, const ProductShape& shape, const MatrixView& a,
                      const MatrixView& b, Into into, float* c, int64_t c_stride);

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_KERNELS_GEMM_H_
