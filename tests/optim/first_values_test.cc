// SPDX-License-Identifier: Apache-2.0
//
// Tests what tensors hold before the first update, read in pieces of any size. Also tests that
// master weights joined from the two tensors of compact state are near the values that were split.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "spillway/engine.h"
#include "spillway/optimizer.h"
#include "tests/optim/compact_reference.h"
#include "tests/optim/rule_reference.h"
#include "tests/seed.h"

namespace spillway::optim {
namespace {

using Bytes = std::vector<std::byte>;

TensorSpec Weight(DType dtype, std::vector<int64_t> shape) {
  TensorSpec spec;
  spec.name = "w";
  spec.dtype = dtype;
  spec.shape = std::move(shape);
  return spec;
}

std::vector<float> Values(size_t n) {
  std::mt19937_64 random(test::Seed());
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& value : values) value = 0.02F * normal(random);
  return values;
}

Reader ReaderOf(const std::vector<float>& values) {
  return [&values](uint64_t offset_bytes, std::span<std::byte> out) {
    EXPECT_EQ(offset_bytes % 4, 0U);
    EXPECT_EQ(out.size() % 4, 0U);
    EXPECT_LE(offset_bytes + out.size(), 4 * values.size());
    std::memcpy(out.data(), reinterpret_cast<const std::byte*>(values.data()) + offset_bytes,
                out.size());
    return absl::OkStatus();
  };
}

// Reads the tensor as an engine does, in pieces of `piece_bytes`.
Bytes ReadAll(const Reader& reader, const TensorSpec& spec, size_t piece_bytes) {
  Bytes bytes(spec.size_bytes());
  for (size_t at = 0; at < bytes.size(); at += piece_bytes) {
    const auto piece = std::span(bytes).subspan(at, std::min(piece_bytes, bytes.size() - at));
    EXPECT_TRUE(reader(at, piece).ok());
  }
  return bytes;
}

TEST(FirstValues, OfOtherFormatsAreTheWeightsAndZeros) {
  const std::vector<float> values = Values(12);
  const TensorSpec weight = Weight(DType::kF16, {3, 4});
  const auto specs = *StateSpecs({}, StateFormat::k8Bit, weight);
  const Reader reader = ReaderOf(values);
  const Bytes halves = ReadAll(FirstValues(StateFormat::k8Bit, weight, weight, reader), weight, 10);
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t half = 0;
    std::memcpy(&half, &halves[2 * i], 2);
    EXPECT_EQ(half, HalfOfFloat(values[i]));
  }
  const Bytes master =
      ReadAll(FirstValues(StateFormat::k8Bit, weight, specs[0], reader), specs[0], 16);
  EXPECT_EQ(std::memcmp(master.data(), values.data(), master.size()), 0);
  EXPECT_FALSE(FirstValues(StateFormat::k8Bit, weight, specs[1], reader));
}

TEST(FirstValues, OfCompactStateAreTheReferencesInAnyPieces) {
  for (const DType dtype : {DType::kF16, DType::kBF16}) {
    for (const std::vector<int64_t>& shape :
         {std::vector<int64_t>{7, 100}, {333}, {}, {2, 3, 5}, {2, 40000}}) {
      const TensorSpec weight = Weight(dtype, shape);
      const TensorSpec state = StateSpecs({}, StateFormat::kCompact, weight)->front();
      const size_t n = weight.size_bytes() / 2;
      const std::vector<float> values = Values(n);
      const size_t rows = state.num_rows(), width = n / rows;
      const Reader reader = ReaderOf(values);
      for (const size_t piece : {size_t{37}, size_t{1000}, size_t{1} << 20}) {
        const Bytes halves =
            ReadAll(FirstValues(StateFormat::kCompact, weight, weight, reader), weight, 2 * piece);
        const Bytes bytes =
            ReadAll(FirstValues(StateFormat::kCompact, weight, state, reader), state, piece);
        for (size_t i = 0; i < n; ++i) {
          const SplitMaster expected = ReferenceSplit(dtype, values[i], 0x80);
          ASSERT_EQ(std::memcmp(&halves[2 * i], &expected.weight, 2), 0);
          ASSERT_EQ(static_cast<int8_t>(bytes[i / width * state.row_bytes() + i % width]),
                    expected.residual);
        }
        // The bytes after a row's residuals are zeros.
        for (size_t row = 0; row < rows; ++row) {
          const std::byte* const begin = &bytes[row * state.row_bytes()];
          ASSERT_TRUE(std::all_of(begin + width, begin + state.row_bytes(),
                                  [](std::byte byte) { return byte == std::byte{0}; }));
        }
        std::vector<float> joined(n);
        ASSERT_TRUE(JoinMasterWeights(weight, state, halves, bytes, joined).ok());
        for (size_t i = 0; i < n; ++i)
          ASSERT_NEAR(joined[i], values[i], std::ldexp(std::fabs(values[i]), -16) + 0x1.0p-33);
      }
    }
  }
}

TEST(FirstValues, PassErrorsOn) {
  const Reader failing = [](uint64_t, std::span<std::byte>) {
    return absl::DataLossError("no weights");
  };
  const TensorSpec weight = Weight(DType::kF16, {3, 4});
  const TensorSpec state = StateSpecs({}, StateFormat::kCompact, weight)->front();
  Bytes bytes(8);
  for (const TensorSpec& tensor : {weight, state}) {
    const Reader reader = FirstValues(StateFormat::kCompact, weight, tensor, failing);
    EXPECT_EQ(reader(0, bytes), absl::DataLossError("no weights"));
  }
}

TEST(JoinMasterWeights, TakesWholeRowsOfAPairAlone) {
  const TensorSpec weight = Weight(DType::kF16, {3, 4});
  const TensorSpec state = StateSpecs({}, StateFormat::kCompact, weight)->front();
  const Bytes bytes(state.size_bytes());
  std::vector<float> floats(12);
  const auto join = [&](const TensorSpec& of, const TensorSpec& with, size_t weight_bytes,
                        size_t state_bytes, size_t count) {
    return JoinMasterWeights(of, with, std::span(bytes).first(weight_bytes),
                             std::span(bytes).first(state_bytes), std::span(floats).first(count));
  };
  const size_t row = state.row_bytes();
  EXPECT_TRUE(join(weight, state, 24, 3 * row, 12).ok());
  EXPECT_TRUE(join(weight, state, 8, row, 4).ok());
  EXPECT_FALSE(join(weight, state, 8, row, 5).ok());
  EXPECT_FALSE(join(weight, state, 16, row, 4).ok());
  EXPECT_FALSE(join(weight, state, 8, row - 1, 4).ok());
  EXPECT_FALSE(join(weight, weight, 8, row, 4).ok());
  EXPECT_FALSE(join(Weight(DType::kF32, {3, 4}), state, 8, row, 4).ok());
  EXPECT_FALSE(join(Weight(DType::kF16, {4, 4}), state, 8, row, 4).ok());
  EXPECT_FALSE(join(Weight(DType::kF16, {3, 400}), state, 8, row, 4).ok());
  const TensorSpec empty = {.name = "w/compact", .dtype = DType::kU8, .shape = {3, 0}};
  EXPECT_FALSE(join(Weight(DType::kF16, {3, 0}), empty, 0, 0, 0).ok());
}

}  // namespace
}  // namespace spillway::optim
