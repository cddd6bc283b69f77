// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/compute/gpu/product_call.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "src/base/status_macros.h"
#include "src/base/view.h"

namespace spillway::trainer::gpu {
namespace {

// The library takes sizes in 64 bits, but kernels of its older versions count in 32.
constexpr int64_t kMostElements = std::numeric_limits<int32_t>::max();

absl::Status CheckMatrix(const char* name, const RowMajor& matrix, int64_t batch) {
  const View& view = matrix.view;
  const auto refuse = [&](const std::string& what) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a product's %s, [%d, %d] with %d elements "
                        "from row to row: %s",
                        name, view.rows, view.columns, view.stride, what));
  };
  if (view.rows < 1 || view.columns < 1) return refuse("it has no elements");
  if (std::max({view.rows, view.columns, view.stride}) > kMostElements)
    return refuse("no size may be above 2^31 - 1");
  if (view.rows > 1 && view.stride < view.columns) return refuse("the rows overlap");
  if (view.stored == DType::kU8) return refuse("bytes cannot be multiplied");
  if (matrix.offset_bytes % ElementBytes(view.stored) != 0)
    return refuse(absl::StrCat(matrix.offset_bytes, " bytes before it are no whole elements"));
  if (batch > 1 && matrix.batch_elements < 0) return refuse("the batch goes backwards");
  return absl::OkStatus();
}

// Whether the matrices of a batch do not overlap: they follow each other, or lie side by side in
// the same rows, as heads do.
bool LieApart(const View& view, int64_t apart, int64_t batch) {
  const bool are_in_turn = apart >= (view.rows - 1) * view.stride + view.columns;
  const bool are_abreast =
      apart >= view.columns && (batch - 1) * apart + view.columns <= view.stride;
  return are_in_turn || are_abreast;
}

StoredMatrix Stored(const RowMajor& matrix, int64_t batch) {
  const View& view = matrix.view;
  const uint64_t lowest_bit = matrix.offset_bytes & (~matrix.offset_bytes + 1);
  return {.type = view.stored,
          .rows = view.columns,
          .columns = view.rows,
          // The stride of a single row may be anything.
          .ld = std::max(view.stride, view.columns),
          .batch_elements = batch > 1 ? matrix.batch_elements : 0,
          .alignment_bytes = static_cast<uint32_t>(
              lowest_bit == 0 ? kAlignedBytes : std::min(lowest_bit, kAlignedBytes))};
}

}  // namespace

RowMajorProduct ProductOf(const Product& product, uint64_t a_offset_bytes,
                          uint64_t c_offset_bytes) {
  return {.a = {.view = product.a, .offset_bytes = a_offset_bytes},
          .b = {.view = product.w},
          .d = {.view = product.c, .offset_bytes = c_offset_bytes},
          .transposes_b = product.transposed,
          .into = product.into};
}

RowMajorProduct ProductOf(const ProductGradient& product, uint64_t a_offset_bytes,
                          uint64_t b_offset_bytes) {
  return {.a = {.view = product.a, .offset_bytes = a_offset_bytes},
          .b = {.view = product.b, .offset_bytes = b_offset_bytes},
          .d = {.view = product.into.tile},
          .transposes_a = true,
          .into = product.into.into};
}

absl::StatusOr<ProductCall> CallOf(const RowMajorProduct& product) {
  if (product.batch < 1 || product.batch > kMostElements) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "a product has a batch of %d matrices; it takes 1 to 2^31 - 1", product.batch));
  }
  SPILLWAY_RETURN_IF_ERROR(CheckMatrix("A", product.a, product.batch));
  SPILLWAY_RETURN_IF_ERROR(CheckMatrix("B", product.b, product.batch));
  SPILLWAY_RETURN_IF_ERROR(CheckMatrix("D", product.d, product.batch));
  const View& a = product.a.view;
  const View& b = product.b.view;
  const View& d = product.d.view;
  if (a.stored != b.stored || (d.stored != DType::kF32 && d.stored != a.stored)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a product of ", base::View(spillway::Name(a.stored)), " and ",
        base::View(spillway::Name(b.stored)), " into ", base::View(spillway::Name(d.stored)),
        ": the operands must have one type, and the result fp32 or that type"));
  }
  const int64_t m = product.transposes_a ? a.columns : a.rows;
  const int64_t k = product.transposes_a ? a.rows : a.columns;
  const int64_t b_k = product.transposes_b ? b.columns : b.rows;
  const int64_t n = product.transposes_b ? b.rows : b.columns;
  if (k != b_k || m != d.rows || n != d.columns) {
    return absl::InvalidArgumentError(
        absl::StrFormat("a product of [%d, %d] and [%d, %d] into [%d, %d]: the sizes do not fit", m,
                        k, b_k, n, d.rows, d.columns));
  }
  if (product.batch > 1 && !LieApart(d, product.d.batch_elements, product.batch)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "a product's %d results [%d, %d] with %d elements from row to row lie %d elements apart, "
        "so they overlap",
        product.batch, d.rows, d.columns, d.stride, product.d.batch_elements));
  }
  return ProductCall{.a = Stored(product.b, product.batch),
                     .b = Stored(product.a, product.batch),
                     .d = Stored(product.d, product.batch),
                     .transposes_a = product.transposes_b,
                     .transposes_b = product.transposes_a,
                     .m = n,
                     .n = m,
                     .k = k,
                     .adds = product.into == Into::kAdd,
                     .batch = product.batch};
}

std::string Name(const ProductCall& call) {
  std::string name =
      absl::StrCat(base::View(spillway::Name(call.a.type)), call.transposes_a ? " T" : " N",
                   call.transposes_b ? "T " : "N ", call.m, "x", call.n, "x", call.k);
  if (call.batch > 1) absl::StrAppend(&name, " x", call.batch);
  if (call.d.type != call.a.type)
    absl::StrAppend(&name, " to ", base::View(spillway::Name(call.d.type)));
  if (call.adds) absl::StrAppend(&name, " +");
  return name;
}

}  // namespace spillway::trainer::gpu
