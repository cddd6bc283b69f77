// SPDX-License-Identifier: Apache-2.0
//
// Tests the calls of products: evaluated as the library's guide defines them, they give the
// row-major products; what does not fit is refused; alignments follow from offsets.

#include "tools/trainer/compute/gpu/product_call.h"

#include <cstdint>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/seed.h"
#include "tests/trainer/random_product.h"

namespace spillway::trainer::gpu {
namespace {

using ::testing::HasSubstr;

// D = op(A)·op(B) + beta·D, column-major, for each matrix of a batch (cuBLAS guide,
// cublasLtMatmul).
void Evaluate(const ProductCall& call, const float* a, const float* b, float* d) {
  for (int64_t batch = 0; batch < call.batch; ++batch) {
    for (int64_t column = 0; column < call.n; ++column) {
      for (int64_t row = 0; row < call.m; ++row) {
        float sum = 0;
        for (int64_t i = 0; i < call.k; ++i) {
          sum += a[call.transposes_a ? row * call.a.ld + i : i * call.a.ld + row] *
                 b[call.transposes_b ? i * call.b.ld + column : column * call.b.ld + i];
        }
        float& element = d[column * call.d.ld + row];
        element = sum + (call.adds ? element : 0);
      }
    }
    a += call.a.batch_elements;
    b += call.b.batch_elements;
    d += call.d.batch_elements;
  }
}

TEST(ProductCall, GivesTheRowMajorProduct) {
  std::mt19937_64 random(test::Seed());
  for (int round = 0; round < 5000; ++round) {
    SCOPED_TRACE(round);
    RandomProduct made = MakeRandomProduct(random);
    const RowMajorProduct& product = made.product;
    const absl::StatusOr<ProductCall> call = CallOf(product);
    ASSERT_TRUE(call.ok()) << call.status();
    // What the library requires of sizes.
    ASSERT_EQ(call->transposes_a ? call->a.columns : call->a.rows, call->m);
    ASSERT_EQ(call->transposes_a ? call->a.rows : call->a.columns, call->k);
    ASSERT_EQ(call->transposes_b ? call->b.columns : call->b.rows, call->k);
    ASSERT_EQ(call->transposes_b ? call->b.rows : call->b.columns, call->n);
    ASSERT_EQ(call->d.rows, call->m);
    ASSERT_EQ(call->d.columns, call->n);
    for (const StoredMatrix& matrix : {call->a, call->b, call->d})
      ASSERT_GE(matrix.ld, matrix.rows);
    // The operands change places.
    Evaluate(*call, First(made.b, product.b), First(made.a, product.a), First(made.d, product.d));
    ASSERT_EQ(made.d, made.result) << Name(*call);
  }
}

View Sized(int64_t rows, int64_t columns, DType type = DType::kBF16) {
  return {.stored = type, .rounded = type, .rows = rows, .columns = columns, .stride = columns};
}

RowMajorProduct Good() {
  RowMajorProduct product;
  product.a.view = Sized(4, 8);
  product.b.view = Sized(8, 6);
  product.d.view = Sized(4, 6);
  return product;
}

TEST(ProductCall, RefusesWhatTheLibraryWouldNot) {
  const auto expect = [](const RowMajorProduct& product, const std::string& words) {
    const absl::StatusOr<ProductCall> call = CallOf(product);
    ASSERT_FALSE(call.ok()) << words;
    EXPECT_EQ(call.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(call.status().message()), HasSubstr(words));
  };
  ASSERT_TRUE(CallOf(Good()).ok());
  RowMajorProduct product = Good();
  product.b.view.rows = 7;
  expect(product, "the sizes do not fit");
  product = Good();
  product.transposes_a = true;
  expect(product, "the sizes do not fit");
  product = Good();
  product.d.view.columns = 5;
  expect(product, "the sizes do not fit");
  product = Good();
  product.a.view.stride = 7;
  expect(product, "the rows overlap");
  product = Good();
  product.a.view.rows = 0;
  expect(product, "no elements");
  product = Good();
  product.a.view.stride = int64_t{1} << 31;
  expect(product, "2^31");
  product = Good();
  product.a.view.stored = DType::kF16;
  expect(product, "one type");
  product = Good();
  product.d.view.stored = DType::kF16;
  expect(product, "one type");
  product = Good();
  product.a.view.stored = product.b.view.stored = DType::kU8;
  expect(product, "bytes");
  product = Good();
  product.d.offset_bytes = 3;
  expect(product, "whole elements");
  product = Good();
  product.batch = 0;
  expect(product, "batch");
  product = Good();
  product.batch = 2;
  product.d.batch_elements = 23;
  expect(product, "overlap");
  product.d.batch_elements = 24;
  EXPECT_TRUE(CallOf(product).ok());
  // Side by side in rows of 12 elements.
  product.d.view.stride = 12;
  product.d.batch_elements = 6;
  EXPECT_TRUE(CallOf(product).ok());
  product.d.batch_elements = 5;
  expect(product, "overlap");
  product.d.batch_elements = 7;
  expect(product, "overlap");
  product.d.batch_elements = 42;
  product.a.batch_elements = -1;
  expect(product, "backwards");
}

TEST(ProductCall, AlignmentsFollowFromOffsets) {
  RowMajorProduct product = Good();
  product.a.offset_bytes = 6;
  product.b.offset_bytes = 4096 + 64;
  product.d.offset_bytes = 0;
  const ProductCall call = CallOf(product).value();
  EXPECT_EQ(call.b.alignment_bytes, 2u);
  EXPECT_EQ(call.a.alignment_bytes, 64u);
  EXPECT_EQ(call.d.alignment_bytes, 128u);
}

TEST(ProductCall, OperationsAreProducts) {
  const Product forward = {
      .a = Sized(5, 8), .w = Sized(3, 8), .transposed = true, .c = Sized(5, 3)};
  const ProductCall y = CallOf(ProductOf(forward, 128, 32)).value();
  EXPECT_EQ(Name(y), "bf16 TN 3x5x8");
  EXPECT_EQ(y.d.alignment_bytes, 32u);
  Product backward = {
      .a = Sized(5, 3), .w = Sized(3, 8), .into = Into::kAdd, .c = Sized(5, 8, DType::kF32)};
  EXPECT_EQ(Name(CallOf(ProductOf(backward, 0, 0)).value()), "bf16 NN 8x5x3 to f32 +");
  ProductGradient gradient = {.a = Sized(5, 3), .b = Sized(5, 8), .into = {.tile = Sized(3, 8)}};
  EXPECT_EQ(Name(CallOf(ProductOf(gradient, 0, 0)).value()), "bf16 NT 8x3x5");
}

}  // namespace
}  // namespace spillway::trainer::gpu
