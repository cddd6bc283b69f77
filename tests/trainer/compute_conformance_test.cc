// SPDX-License-Identifier: Apache-2.0
//
// What every Compute must do: each operation against a plain computation in double precision, on
// odd sizes, strided views and tiles of every type. Elements pass through tiles of an engine, so
// that the suite needs no access to a device's memory.
//
// A GPU's operands of products have 16 bits. Where a product's operand is given in fp32, what is
// expected is computed from the operand as it is rounded, and the limit stays the same. Only
// attention rounds between its products; its limits derive from those roundings.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "spillway/engine.h"
#include "spillway/thread_pool.h"
#include "tests/exhaustive.h"
#include "tests/seed.h"
#include "tests/trainer/stream_compute.h"
#include "tools/trainer/compute/compute.h"
#include "tools/trainer/compute/elements.h"
#include "tools/trainer/compute/gpu/emulated_device.h"
#include "tools/trainer/compute/gpu_compute.h"
#include "tools/trainer/compute/host_compute.h"

namespace spillway::trainer {
namespace {

using Values = std::vector<float>;  // of a matrix, row by row

// The GPU's differ in the type of operands.
enum class Kind : uint8_t { kHost, kStream, kGpu, kGpuFp16, kGpuBf16 };

class EachCompute : public testing::TestWithParam<Kind> {
 protected:
  struct Leased {
    Lease lease;
    View view;
  };

  EachCompute() : random_(test::Seed()), pool_(2) {
    EngineOptions options;
    options.device_bytes = options.pinned_bytes = 8 * kMiB;
    engine_ = *Engine::Open(options);
    if (SPILLWAY_IS_THREAD_SANITIZED && IsGpu()) return;
    if (IsGpu()) {
      auto on_gpu = std::make_unique<GpuCompute>(
          std::make_unique<gpu::EmulatedDevice>(test::Seed()), operands());
      EXPECT_TRUE(on_gpu->Begin(engine_.get()).ok());
      compute_ = std::move(on_gpu);
    } else {
      compute_ = *HostCompute::Create(&pool_);
    }
    if (GetParam() == Kind::kStream) {
      compute_ = std::make_unique<StreamCompute>(*engine_->CreateStream(), std::move(compute_));
    }
    base_ = *compute_->Reserve({.view_bytes = kScratchBytes,
                                .largest_narrow_tile_elements = 1 << 14,
                                .largest_gradient_elements = 1 << 14,
                                .largest_operand_elements = 1 << 14,
                                .num_sums = 2,
                                .step_tokens = 16,
                                .most_logits = 1 << 10});
  }

  void SetUp() override {
    if (compute_ == nullptr) {
      GTEST_SKIP()
          << "the thread sanitizer has room for 255 threads and fibers, and a block has 256";
    }
  }

  static bool IsGpu() { return GetParam() != Kind::kHost && GetParam() != Kind::kStream; }
  // The type of operands that have none of their own.
  static DType operands() {
    return GetParam() == Kind::kGpuFp16   ? DType::kF16
           : GetParam() == Kind::kGpuBf16 ? DType::kBF16
                                          : DType::kF32;
  }
  // The largest relative error of one rounding to that type.
  static double RoundingOfOperands() {
    return operands() == DType::kF32 ? 0 : operands() == DType::kF16 ? 0x1p-11 : 0x1p-8;
  }
  // What a product with a tile of a type takes for an operand in fp32.
  static Values OperandOf(DType type, const Values& values) {
    return IsGpu() ? Rounded(type, values) : values;
  }

  Values Random(int64_t n, float scale = 1) {
    std::normal_distribution<float> normal(0, scale);
    Values values(static_cast<size_t>(n));
    for (float& value : values) value = normal(random_);
    return values;
  }

  // Rounds values to a type.
  static Values Rounded(DType type, const Values& values) {
    std::vector<std::byte> bytes(values.size() * ElementBytes(type));
    WriteElements(type, values, bytes.data());
    Values rounded(values.size());
    ReadElements(type, bytes.data(), rounded);
    return rounded;
  }

  // Takes undefined scratch.
  View Take(int64_t rows, int64_t columns, DType rounded = DType::kF32) {
    const DType stored = compute_->StoredAs(rounded);
    return {.data = Memory(static_cast<uint64_t>(rows * columns) * ElementBytes(stored)),
            .stored = stored,
            .rounded = rounded,
            .rows = rows,
            .columns = columns,
            .stride = columns};
  }
  std::byte* Memory(uint64_t bytes) {
    std::byte* const taken = base_ + used_;
    used_ += (bytes + 127) / 128 * 128;
    EXPECT_LE(used_, kScratchBytes);
    return taken;
  }

  TensorId Tensor(DType type, int64_t rows, int64_t columns, const Values& values) {
    std::vector<std::byte> bytes(values.size() * ElementBytes(type));
    WriteElements(type, values, bytes.data());
    const TensorSpec spec = {.name = absl::StrCat("tensor ", ++num_tensors_),
                             .dtype = type,
                             .shape = {rows, columns},
                             .role = Role::kParameter};
    return *engine_->Register(spec, [&](uint64_t offset, std::span<std::byte> out) {
      std::memcpy(out.data(), bytes.data() + offset, out.size());
      return absl::OkStatus();
    });
  }

  Leased Acquire(TensorId tensor, Access access) {
    const TensorSpec& spec = engine_->Spec(tensor);
    Lease lease = *engine_->Acquire(tensor, access, compute_->stream());
    const View view = {.data = lease.data(),
                       .stored = spec.dtype,
                       .rounded = spec.dtype,
                       .rows = spec.shape[0],
                       .columns = spec.shape[1],
                       .stride = spec.shape[1]};
    return {std::move(lease), view};
  }

  View Put(int64_t rows, int64_t columns, const Values& values, DType rounded = DType::kF32) {
    const View view = Take(rows, columns, rounded);
    Leased tile = Acquire(Tensor(DType::kF32, rows, columns, values), Access::kRead);
    compute_->CopyFromTile(tile.view, std::move(tile.lease), view);
    return view;
  }

  // Returns the elements of a contiguous view.
  Values Get(const View& view) {
    const TensorId tensor =
        Tensor(DType::kF32, view.rows, view.columns, Values(static_cast<size_t>(view.elements())));
    Leased tile = Acquire(tensor, Access::kDiscard);
    compute_->CopyToTile(view, tile.view, std::move(tile.lease));
    return Read(tensor);
  }
  Values Read(TensorId tensor) {
    results_ = *compute_->Collect();
    const Lease lease = *engine_->AcquireHost(tensor, Access::kRead);
    const DType type = engine_->Spec(tensor).dtype;
    Values values(lease.size_bytes() / ElementBytes(type));
    ReadElements(type, lease.data(), values);
    return values;
  }

  static void ExpectNear(const Values& got, const std::vector<double>& expected,
                         double tolerance = 2e-5) {
    ASSERT_EQ(got.size(), expected.size());
    double largest = 1;
    for (const double value : expected) largest = std::max(largest, std::fabs(value));
    for (size_t i = 0; i < got.size(); ++i)
      ASSERT_NEAR(got[i], expected[i], tolerance * largest) << "element " << i;
  }

  static constexpr uint64_t kScratchBytes = 4 * kMiB;
  std::mt19937_64 random_;
  ThreadPool pool_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<Compute> compute_;
  std::byte* base_ = nullptr;
  uint64_t used_ = 0;
  int num_tensors_ = 0;
  StepResults results_;  // of the last Read
};

// The product of [n, k] and [k, m], of which the second is stored transposed or not.
std::vector<double> ProductOf(const Values& a, const Values& b, size_t n, size_t k, size_t m,
                              bool b_transposed) {
  std::vector<double> c(n * m);
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < m; ++j) {
      for (size_t l = 0; l < k; ++l)
        c[i * m + j] += double{a[i * k + l]} * b[b_transposed ? j * k + l : l * m + j];
    }
  }
  return c;
}

TEST_P(EachCompute, ProductsWithTilesOfEveryType) {
  constexpr int64_t kRows = 7, kInner = 21, kColumns = 13, kAll = 30;
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const bool transposed : {true, false}) {
      for (const Into into : {Into::kOverwrite, Into::kAdd}) {
        const Values a = Random(kRows * kInner), w = Random(kInner * kColumns);
        const Values before = Random(kRows * kAll);
        const View all = Put(kRows, kAll, before);
        const TensorId tensor =
            Tensor(type, transposed ? kColumns : kInner, transposed ? kInner : kColumns, w);
        const View operand = Put(kRows, kInner, a);
        Leased tile = Acquire(tensor, Access::kRead);
        compute_->Multiply({.a = operand,
                            .w = tile.view,
                            .transposed = transposed,
                            .into = into,
                            .c = all.Columns(5, kColumns)},
                           std::move(tile.lease));
        const std::vector<double> product =
            ProductOf(OperandOf(type, a), Rounded(type, w), kRows, kInner, kColumns, transposed);
        std::vector<double> expected(before.begin(), before.end());
        for (size_t i = 0; i < kRows; ++i) {
          for (size_t j = 0; j < kColumns; ++j) {
            double& c = expected[i * kAll + 5 + j];
            c = product[i * kColumns + j] + (into == Into::kAdd ? c : 0);
          }
        }
        ExpectNear(Get(all), expected);
      }
    }
  }
}

TEST_P(EachCompute, GradientsAreAddedWithOneRoundingAndSquared) {
  constexpr int64_t kTokens = 9, kRows = 70, kColumns = 131;
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const Into into : {Into::kOverwrite, Into::kAdd}) {
      const DType operand = type == DType::kF32 ? operands() : type;
      const Values dy = OperandOf(operand, Random(kTokens * kRows));
      const Values x = OperandOf(operand, Random(kTokens * kColumns));
      const Values before = Rounded(type, Random(kRows * kColumns));
      const TensorId tensor = Tensor(type, kRows, kColumns, before);
      const View a = Put(kTokens, kRows, dy), b = Put(kTokens, kColumns, x);
      Leased tile =
          Acquire(tensor, into == Into::kOverwrite ? Access::kDiscard : Access::kReadWrite);
      compute_->MultiplyGradient(
          {.a = a, .b = b, .into = {.tile = tile.view, .into = into, .sum = 1}},
          std::move(tile.lease));
      Values transposed(dy.size());
      for (size_t i = 0; i < kTokens; ++i) {
        for (size_t j = 0; j < kRows; ++j) transposed[j * kTokens + i] = dy[i * kRows + j];
      }
      std::vector<double> expected = ProductOf(transposed, x, kRows, kTokens, kColumns, false);
      for (size_t i = 0; into == Into::kAdd && i < expected.size(); ++i) expected[i] += before[i];
      const Values got = Read(tensor);
      ExpectNear(got, expected, type == DType::kBF16 ? 4e-3 : type == DType::kF16 ? 6e-4 : 2e-5);
      double squares = 0;
      for (const float value : got) squares += double{value} * value;
      EXPECT_NEAR(results_.sum_of_squares, squares, 1e-9 * squares);
    }
  }
}

TEST_P(EachCompute, Biases) {
  constexpr int64_t kRows = 37, kColumns = 19;
  const Values y = Random(kRows * kColumns), bias = Random(kColumns);
  const View result = Put(kRows, kColumns, y), sums = Take(1, kColumns);
  const View of = Put(1, kColumns, bias);
  compute_->BiasGradient(result, sums);
  compute_->AddBias(of, result);
  std::vector<double> expected_sums(kColumns), expected(y.begin(), y.end());
  for (size_t i = 0; i < y.size(); ++i) {
    expected_sums[i % kColumns] += y[i];
    expected[i] += bias[i % kColumns];
  }
  ExpectNear(Get(sums), expected_sums);
  ExpectNear(Get(result), expected);
}

TEST_P(EachCompute, WhatIsWrittenIsRoundedToTheViewsType) {
  constexpr int64_t kRows = 5, kColumns = 23;
  for (const DType type : {DType::kF16, DType::kBF16}) {
    const Values from = Random(kRows * kColumns), to = Rounded(type, Random(kRows * kColumns));
    const View sum = Put(kRows, kColumns, to, type);
    compute_->Add(Put(kRows, kColumns, from), sum);
    Values expected(to.size());
    for (size_t i = 0; i < to.size(); ++i) expected[i] = to[i] + from[i];
    EXPECT_EQ(Get(sum), Rounded(type, expected));
  }
}

TEST_P(EachCompute, LookupsAndTheirGradients) {
  constexpr int64_t kWidth = 11, kFirst = 40, kTableRows = 6, kTokens = 5;
  const std::vector<TableRow> entries = {{40, 2}, {41, 0}, {41, 1}, {41, 4}, {45, 3}};
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    const Values table = Rounded(type, Random(kTableRows * kWidth));
    const Values before = Random(kTokens * kWidth);
    const View x = Take(kTokens, kWidth), added = Put(kTokens, kWidth, before);
    const TensorId tensor = Tensor(type, kTableRows, kWidth, table);
    for (const auto& [to, into] : {std::pair(x, Into::kOverwrite), std::pair(added, Into::kAdd)}) {
      Leased tile = Acquire(tensor, Access::kRead);
      compute_->LookUp(
          {.table = tile.view, .first_row = kFirst, .entries = entries, .into = into, .x = to},
          std::move(tile.lease));
    }
    const Values dx = Random(kTokens * kWidth);
    const TensorId gradient = Tensor(type, kTableRows, kWidth, table);
    const View of_x = Put(kTokens, kWidth, dx), work = Take(1, kWidth);
    Leased tile = Acquire(gradient, Access::kReadWrite);
    compute_->LookUpGradient({.dx = of_x,
                              .entries = entries,
                              .first_row = kFirst,
                              .into = {.tile = tile.view, .into = Into::kAdd},
                              .work = work},
                             std::move(tile.lease));
    std::vector<double> rows(dx.size()), sums(before.begin(), before.end());
    std::vector<double> expected(table.begin(), table.end());
    for (const TableRow& entry : entries) {
      for (size_t j = 0; j < kWidth; ++j) {
        const size_t at = static_cast<size_t>(entry.position) * kWidth + j;
        const size_t in_table = static_cast<size_t>(entry.row - kFirst) * kWidth + j;
        rows[at] = table[in_table];
        sums[at] += table[in_table];
        expected[in_table] += dx[at];
      }
    }
    ExpectNear(Get(x), rows);
    ExpectNear(Get(added), sums);
    ExpectNear(Get(of_x), std::vector<double>(dx.begin(), dx.end()), 0);  // is not changed
    ExpectNear(Read(gradient), expected,
               type == DType::kBF16  ? 4e-3
               : type == DType::kF16 ? 6e-4
                                     : 2e-5);
  }
}

TEST_P(EachCompute, NormsAndTheirGradients) {
  constexpr int64_t kRows = 41, kWidth = 27;
  for (const NormKind kind : {NormKind::kRms, NormKind::kLayer}) {
    const bool is_layer = kind == NormKind::kLayer;
    const Values x = Random(kRows * kWidth), dy = Random(kRows * kWidth);
    const Values scale = Random(kWidth), shift = Random(kWidth), dx = Random(kRows * kWidth);
    const NormArguments norm = {.kind = kind,
                                .epsilon = 1e-5f,
                                .x = Put(kRows, kWidth, x),
                                .scale = Put(1, kWidth, scale),
                                .shift = is_layer ? Put(1, kWidth, shift) : View(),
                                .stats = Take(2, kRows)};
    const View y = Take(kRows, kWidth), of_x = Put(kRows, kWidth, dx);
    const NormGradientArguments gradient = {
        .norm = norm,
        .dy = Put(kRows, kWidth, dy),
        .dx = of_x,
        .scale_gradient = norm.scale,
        .shift_gradient = norm.shift,
        .work = Memory(compute_->NormWorkBytes(kind, kRows, kWidth))};
    compute_->Norm(norm, y);
    compute_->NormGradient(gradient);

    std::vector<double> expected(x.size()), of_scale(kWidth), of_shift(kWidth);
    std::vector<double> expected_dx(dx.begin(), dx.end());
    for (size_t r = 0; r < kRows; ++r) {
      const auto at = [&](size_t j) { return r * kWidth + j; };
      double mean = 0, variance = 0, of_normed = 0, dot = 0;
      for (size_t j = 0; is_layer && j < kWidth; ++j) mean += x[at(j)] / double{kWidth};
      for (size_t j = 0; j < kWidth; ++j)
        variance += (x[at(j)] - mean) * (x[at(j)] - mean) / double{kWidth};
      const double inverse = 1 / std::sqrt(variance + 1e-5);
      for (size_t j = 0; j < kWidth; ++j) {
        const double normed = (x[at(j)] - mean) * inverse, up = dy[at(j)];
        expected[at(j)] = normed * scale[j] + (is_layer ? shift[j] : 0);
        of_scale[j] += up * normed;
        of_shift[j] += up;
        of_normed += up * scale[j] / double{kWidth};
        dot += up * scale[j] * normed / double{kWidth};
      }
      for (size_t j = 0; j < kWidth; ++j) {
        const double normed = (x[at(j)] - mean) * inverse;
        expected_dx[at(j)] +=
            inverse * (double{dy[at(j)]} * scale[j] - (is_layer ? of_normed : 0) - normed * dot);
      }
    }
    ExpectNear(Get(y), expected);
    ExpectNear(Get(of_x), expected_dx);
    ExpectNear(Get(norm.scale), of_scale);
    if (is_layer) ExpectNear(Get(norm.shift), of_shift);
  }
}

// Queries, keys and values lie side by side in one row, as a fused linear gives them.
struct Fused {
  int64_t windows = 2, length = 0, heads = 0, kv_heads = 0, dim = 0, window = 0;
  int64_t width() const { return (heads + 2 * kv_heads) * dim; }
  size_t At(int64_t token, int64_t first_head, int64_t head) const {
    return static_cast<size_t>(token * width() + (first_head + head) * dim);
  }
};

// The output of attention, [tokens, heads · dim].
std::vector<double> AttentionOf(const Fused& shape, const std::vector<double>& rows, double scale) {
  const auto dim = static_cast<size_t>(shape.dim);
  std::vector<double> out(static_cast<size_t>(shape.windows * shape.length * shape.heads) * dim);
  for (int64_t w = 0; w < shape.windows; ++w) {
    for (int64_t h = 0; h < shape.heads; ++h) {
      const int64_t kv = h / (shape.heads / shape.kv_heads);
      for (int64_t q = 0; q < shape.length; ++q) {
        const int64_t token = w * shape.length + q;
        const int64_t first = shape.window == 0 ? 0 : std::max<int64_t>(0, q - shape.window + 1);
        std::vector<double> weights;
        double sum = 0;
        for (int64_t k = first; k <= q; ++k) {
          double score = 0;
          for (size_t j = 0; j < dim; ++j) {
            score += rows[shape.At(token, 0, h) + j] *
                     rows[shape.At(w * shape.length + k, shape.heads, kv) + j];
          }
          weights.push_back(std::exp(score * scale));
          sum += weights.back();
        }
        for (int64_t k = first; k <= q; ++k) {
          const size_t value = shape.At(w * shape.length + k, shape.heads + shape.kv_heads, kv);
          for (size_t j = 0; j < dim; ++j) {
            out[static_cast<size_t>(token * shape.heads + h) * dim + j] +=
                weights[static_cast<size_t>(k - first)] / sum * rows[value + j];
          }
        }
      }
    }
  }
  return out;
}

TEST_P(EachCompute, AttentionWithWindowsAndStrides) {
  const std::vector<Fused> shapes = {
      {.length = 9, .heads = 4, .kv_heads = 2, .dim = 6},
      {.length = 9, .heads = 4, .kv_heads = 2, .dim = 6, .window = 4},
      {.length = 5, .heads = 3, .kv_heads = 3, .dim = 5, .window = 1},
      {.windows = 1, .length = 150, .heads = 2, .kv_heads = 1, .dim = 3, .window = 33}};
  constexpr float kScale = 0.3f;
  for (const Fused& shape : shapes) {
    SCOPED_TRACE(absl::StrCat(shape.length, " tokens, window ", shape.window));
    const int64_t tokens = shape.windows * shape.length, out_width = shape.heads * shape.dim;
    const Values rows = Rounded(operands(), Random(tokens * shape.width()));
    const Values d_out = Random(tokens * out_width);
    const View in = Put(tokens, shape.width(), rows, operands());
    const View gradient = Take(tokens, shape.width());
    const auto heads = [&](const View& of, int64_t first, int64_t count) {
      return Heads{.rows = of.Columns(first * shape.dim, count * shape.dim),
                   .heads = count,
                   .head_stride = shape.dim};
    };
    const AttentionSizes sizes = {.windows = shape.windows,
                                  .length = shape.length,
                                  .heads = shape.heads,
                                  .kv_heads = shape.kv_heads,
                                  .head_dim = shape.dim,
                                  .window = shape.window,
                                  .scale = kScale};
    const int64_t keys = shape.heads, values = shape.heads + shape.kv_heads;
    const AttentionArguments attention = {.sizes = sizes,
                                          .query = heads(in, 0, shape.heads),
                                          .key = heads(in, keys, shape.kv_heads),
                                          .value = heads(in, values, shape.kv_heads),
                                          .out = Take(tokens, out_width, operands()),
                                          .work = Memory(compute_->AttentionWorkBytes(sizes))};
    compute_->Attention(attention);
    compute_->AttentionGradient({.forward = attention,
                                 .out_gradient = Put(tokens, out_width, d_out),
                                 .query_gradient = heads(gradient, 0, shape.heads),
                                 .key_gradient = heads(gradient, keys, shape.kv_heads),
                                 .value_gradient = heads(gradient, values, shape.kv_heads)});
    std::vector<double> exact(rows.begin(), rows.end());
    // An output is a mean of values. The shares of the values are rounded, and then the output.
    const double rounding = RoundingOfOperands();
    double largest_value = 0;
    for (const double value : exact) largest_value = std::max(largest_value, std::fabs(value));
    ExpectNear(Get(attention.out), AttentionOf(shape, exact, kScale),
               2e-5 + 2 * rounding * largest_value);
    // The gradient by differences, of a few elements. Three operands of its products are rounded:
    // the output's gradient, the shares, and the gradient of the scores.
    const Values got = Get(gradient);
    double largest_got = 0;
    for (const float value : got) largest_got = std::max(largest_got, std::fabs(double{value}));
    for (int i = 0; i < 20; ++i) {
      const size_t at = random_() % exact.size();
      const double value = exact[at];
      const auto dotted = [&](double changed) {
        exact[at] = changed;
        const std::vector<double> out = AttentionOf(shape, exact, kScale);
        double sum = 0;
        for (size_t j = 0; j < out.size(); ++j) sum += out[j] * d_out[j];
        return sum;
      };
      const double slope = (dotted(value + 1e-5) - dotted(value - 1e-5)) / 2e-5;
      exact[at] = value;
      EXPECT_NEAR(got[at], slope,
                  2e-4 * std::max(1.0, std::fabs(slope)) + 3 * rounding * largest_got)
          << "element " << at;
    }
  }
}

TEST_P(EachCompute, RopeTurnsHeadsOfAWiderRowAndTurnsThemBack) {
  constexpr int64_t kTokens = 10, kLength = 5, kHeads = 3, kDim = 6, kWidth = 25;
  const Values frequencies = {1.0f, 0.3f, 0.05f};
  const View cosines = Take(kLength, 3), sines = Take(kLength, 3);
  const Values x = Random(kTokens * kWidth);
  const View rows = Put(kTokens, kWidth, x);
  compute_->FillRope(frequencies, cosines, sines);
  RopeArguments rope = {
      .cosines = cosines,
      .sines = sines,
      .length = kLength,
      .head_dim = kDim,
      .x = {.rows = rows.Columns(4, kHeads * kDim), .heads = kHeads, .head_stride = kDim}};
  compute_->Rope(rope);
  std::vector<double> expected(x.begin(), x.end());
  for (size_t t = 0; t < kTokens; ++t) {
    for (size_t h = 0; h < kHeads; ++h) {
      for (size_t j = 0; j < 3; ++j) {
        const size_t low = t * kWidth + 4 + h * kDim + j, high = low + 3;
        const double angle = static_cast<double>(t % kLength) * frequencies[j];
        expected[low] = x[low] * std::cos(angle) - x[high] * std::sin(angle);
        expected[high] = x[high] * std::cos(angle) + x[low] * std::sin(angle);
      }
    }
  }
  ExpectNear(Get(rows), expected);
  rope.backward = true;
  compute_->Rope(rope);
  ExpectNear(Get(rows), std::vector<double>(x.begin(), x.end()));
}

TEST_P(EachCompute, ActivationsAndTheirGradients) {
  constexpr int64_t kRows = 3, kWidth = 35;
  for (const Activate function : {Activate::kSilu, Activate::kGeluTanh}) {
    const bool has_gate = function == Activate::kSilu;
    const Values gate = Random(kRows * kWidth, 2), up = Random(kRows * kWidth, 2);
    const Values d_out = Random(kRows * kWidth);
    const auto of = [&](double g, double u) {
      if (has_gate) return g / (1 + std::exp(-g)) * u;
      return u / 2 * (1 + std::tanh(std::sqrt(2 / std::acos(-1.0)) * (u + 0.044715 * u * u * u)));
    };
    ActivationArguments activation = {.function = function,
                                      .gate = has_gate ? Put(kRows, kWidth, gate) : View(),
                                      .up = Put(kRows, kWidth, up),
                                      .out = Take(kRows, kWidth)};
    compute_->Activation(activation);
    const Values forward = Get(activation.out);
    activation.out = Put(kRows, kWidth, d_out);
    compute_->ActivationGradient(activation);
    EXPECT_EQ(Get(activation.out), forward);
    std::vector<double> expected, of_gate, of_up;
    for (size_t i = 0; i < up.size(); ++i) {
      const double g = gate[i], u = up[i], step = 1e-5;
      expected.push_back(of(g, u));
      of_gate.push_back(d_out[i] * (of(g + step, u) - of(g - step, u)) / (2 * step));
      of_up.push_back(d_out[i] * (of(g, u + step) - of(g, u - step)) / (2 * step));
    }
    ExpectNear(forward, expected);
    ExpectNear(Get(activation.up), of_up);
    if (has_gate) ExpectNear(Get(activation.gate), of_gate);
  }
}

TEST_P(EachCompute, CrossEntropyByTilesOfTheVocabulary) {
  constexpr int64_t kTokens = 4, kFirst = 19, kSecond = 12;
  const std::vector<int32_t> targets = {3, 30, 18, 19};
  const Values logits[] = {Random(kTokens * kFirst, 2), Random(kTokens * kSecond, 2)};
  std::byte* const states = Memory(compute_->SoftmaxBytes(kTokens));
  const View tiles[] = {Put(kTokens, kFirst, logits[0]), Put(kTokens, kSecond, logits[1])};
  const auto tile_of = [&](size_t tile, const View& view) {
    return VocabularyTile{.logits = view,
                          .first_token = tile == 0 ? 0 : kFirst,
                          .targets = targets,
                          .states = states};
  };
  compute_->StartSoftmax(states, kTokens);
  for (const size_t tile : {0, 1}) compute_->GatherSoftmax(tile_of(tile, tiles[tile]));
  compute_->AddLoss(states, kTokens);
  // The second tile's logits are read from a leased tile.
  compute_->CrossEntropyGradient(tile_of(0, tiles[0]), 0.5f, tiles[0], Lease());
  Leased saved = Acquire(Tensor(DType::kF32, kTokens, kSecond, logits[1]), Access::kRead);
  compute_->CrossEntropyGradient(tile_of(1, saved.view), 0.5f, tiles[1], std::move(saved.lease));

  std::vector<double> gradients[2];
  double loss = 0;
  for (size_t t = 0; t < kTokens; ++t) {
    const auto logit = [&](size_t v) -> double {
      return v < kFirst ? logits[0][t * kFirst + v] : logits[1][t * kSecond + v - kFirst];
    };
    const auto target = static_cast<size_t>(targets[t]);
    double sum = 0;
    for (size_t v = 0; v < kFirst + kSecond; ++v) sum += std::exp(logit(v));
    loss += (std::log(sum) - logit(target)) / kTokens;
    for (size_t v = 0; v < kFirst + kSecond; ++v)
      gradients[v < kFirst ? 0 : 1].push_back(0.5 *
                                              (std::exp(logit(v)) / sum - (v == target ? 1 : 0)));
  }
  ExpectNear(Get(tiles[0]), gradients[0]);
  EXPECT_NEAR(results_.loss, loss, 1e-5);
  ExpectNear(Get(tiles[1]), gradients[1]);
  EXPECT_EQ(results_.loss, 0);  // each loss is collected once
}

std::string NameOf(const testing::TestParamInfo<Kind>& info) {
  switch (info.param) {
    case Kind::kHost: return "Host";
    case Kind::kStream: return "Stream";
    case Kind::kGpu: return "EmulatedGpuFp32";
    case Kind::kGpuFp16: return "EmulatedGpuFp16";
    case Kind::kGpuBf16: return "EmulatedGpuBf16";
  }
  return "";
}

INSTANTIATE_TEST_SUITE_P(Computes, EachCompute,
                         testing::Values(Kind::kHost, Kind::kStream, Kind::kGpu, Kind::kGpuFp16,
                                         Kind::kGpuBf16),
                         NameOf);

}  // namespace
}  // namespace spillway::trainer
