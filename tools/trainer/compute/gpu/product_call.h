// SPDX-License-Identifier: Apache-2.0
//
// A matrix product as cuBLASLt takes it. The trainer's matrices are row-major and the library's are
// column-major. A row-major matrix is its transpose in column-major order, so D = op(A)·op(B)
// becomes Dᵀ = op(B)ᵀ·op(A)ᵀ: the operands change places, and keep their transpositions. A call is
// a pure function of types and sizes, so that it can be checked without a GPU, and so that the
// algorithm which is chosen for it serves every product of the same shape (cuBLAS guide, 3.1.2).

#ifndef SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_PRODUCT_CALL_H_
#define SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_PRODUCT_CALL_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "spillway/types.h"
#include "tools/trainer/compute/compute.h"
#include "tools/trainer/compute/into.h"
#include "tools/trainer/compute/view.h"

namespace spillway::trainer::gpu {

// Scratch begins at multiples of this many bytes, and tiles' frames at multiples of 4 KiB.
inline constexpr uint64_t kAlignedBytes = 128;

// A row-major operand.
struct RowMajor {
  View view;                   // `data` is not read
  uint64_t offset_bytes = 0;   // of its first element from an address that is a multiple of 128
  int64_t batch_elements = 0;  // from one matrix of a batch to the next
};

// D = op(A)·op(B), or added to D, for each matrix of a batch.
struct RowMajorProduct {
  RowMajor a, b, d;
  bool transposes_a = false;
  bool transposes_b = false;
  Into into = Into::kOverwrite;
  int64_t batch = 1;
};

// The products of operations; the offsets are those of views of scratch. A leased tile has none.
RowMajorProduct ProductOf(const Product& product, uint64_t a_offset_bytes, uint64_t c_offset_bytes);
RowMajorProduct ProductOf(const ProductGradient& product, uint64_t a_offset_bytes,
                          uint64_t b_offset_bytes);

// Column-major: element (row, column) is number row + column · ld.
struct StoredMatrix {
  DType type = DType::kF32;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t ld = 0;
  int64_t batch_elements = 0;
  uint32_t alignment_bytes = 0;  // of the first element's address: a power of two, at most 128

  friend auto operator<=>(const StoredMatrix&, const StoredMatrix&) = default;
};

// D[m, n] = op(A)[m, k]·op(B)[k, n] + (adds ? D : 0), with sums in fp32.
struct ProductCall {
  StoredMatrix a, b, d;
  bool transposes_a = false;
  bool transposes_b = false;
  int64_t m = 0, n = 0, k = 0;
  bool adds = false;
  int64_t batch = 1;

  friend auto operator<=>(const ProductCall&, const ProductCall&) = default;
};

// InvalidArgument names what the library would not reject itself: sizes that do not fit each other,
// a stride shorter than a row, matrices of a batch that overlap in D, sizes past 2^31 - 1, operands
// of two types, a result that is neither fp32 nor of the operands' type, bytes.
absl::StatusOr<ProductCall> CallOf(const RowMajorProduct& product);

// "bf16 NT 576x512x1536 +", as logs name a shape: the types, op(A) and op(B), m x n x k, and
// whether it adds.
std::string Name(const ProductCall& call);

}  // namespace spillway::trainer::gpu

#endif  // SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_PRODUCT_CALL_H_
