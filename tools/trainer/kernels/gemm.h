// SPDX-License-Identifier: Apache-2.0
//
// Matrix products through CBLAS, cut between threads here and not in the library: the cut is a
// function of the shape and the thread count, so the same numbers come out of every run. The summed
// dimension is never cut. The library is loaded by who multiplies and by nobody else: it takes 30
// ms and memory, and hangs where there is none.

#ifndef SPILLWAY_TOOLS_TRAINER_KERNELS_GEMM_H_
#define SPILLWAY_TOOLS_TRAINER_KERNELS_GEMM_H_

#include <cstdint>

#include "absl/status/status.h"
#include "spillway/thread_pool.h"

namespace spillway::trainer {

// A row-major fp32 matrix with `stride` elements from row to row; `transposed` says how the product
// reads it.
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

enum class Into : uint8_t { kOverwrite, kAdd };

// Loads OpenBLAS, which then runs on the calling thread alone, and has it take its memory for so
// many threads; the first call decides. To be called before the first product, and from one thread.
// Unimplemented: there is no OpenBLAS, or the process may not have that memory; OpenBLAS itself
// would wait for it without an end.
absl::Status LoadBlas(int num_threads);

// c[rows, columns] = a·b, or c += a·b, on the calling thread. No dimension beyond 2^31 - 1.
void Multiply(const ProductShape& shape, const MatrixView& a, const MatrixView& b, Into into,
              float* c, int64_t c_stride);

// The same with the result cut into one part a thread.
void ParallelMultiply(ThreadPool* pool, const ProductShape& shape, const MatrixView& a,
                      const MatrixView& b, Into into, float* c, int64_t c_stride);

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_KERNELS_GEMM_H_
