// SPDX-License-Identifier: Apache-2.0
//
// Tests the calls of the C ABI that work on whole tensors: reads and writes at any byte offset, and
// arithmetic. The results must match those of the same operations on memory, for any tile size.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "src/optim/element_codecs.h"
#include "tests/capi/capi_testing.h"
#include "tests/other_floats.h"
#include "tests/seed.h"

namespace spillway::test {
namespace {

constexpr int64_t kRows = 37, kColumns = 1501;
constexpr auto kElements = static_cast<size_t>(kRows * kColumns);

class CapiBulkTest : public CapiTest {
 protected:
  CapiBulkTest() : random_(Seed()) {}

  std::vector<float> Random() {
    std::normal_distribution<float> normal;
    std::vector<float> values(kElements);
    for (float& value : values) value = normal(random_);
    return values;
  }
  // Rounds the values to the type and returns their bytes.
  static std::vector<std::byte> Encoded(DType dtype, const std::vector<float>& values) {
    std::vector<std::byte> bytes(values.size() * ElementBytes(dtype));
    optim::CodecOf(dtype).encode(values.data(), static_cast<int64_t>(values.size()), bytes.data());
    return bytes;
  }
  static std::vector<float> Rounded(DType dtype, const std::vector<float>& values) {
    const std::vector<std::byte> bytes = Encoded(dtype, values);
    std::vector<float> rounded(values.size());
    optim::CodecOf(dtype).decode(bytes.data(), static_cast<int64_t>(values.size()), rounded.data());
    return rounded;
  }

  std::mt19937_64 random_;
};

TEST_F(CapiBulkTest, BytesAreReadAndWrittenAnywhere) {
  const uint32_t id = Register("b", SPW_U8, kRows, kColumns);
  std::vector<uint8_t> expected(kElements, 0);
  for (int round = 0; round < 200; ++round) {
    const uint64_t offset = random_() % kElements;
    const uint64_t bytes = random_() % (std::min<uint64_t>(kElements - offset, 5 * kColumns) + 1);
    std::vector<uint8_t> piece(bytes);
    if (random_() % 2 == 0) {
      for (uint8_t& byte : piece) byte = static_cast<uint8_t>(random_());
      std::copy(piece.begin(), piece.end(), expected.begin() + static_cast<ptrdiff_t>(offset));
      SPW_ASSERT_OK(spw_write(engine_, id, offset, piece.data(), bytes));
    } else {
      SPW_ASSERT_OK(spw_read(engine_, id, offset, piece.data(), bytes));
      ASSERT_TRUE(std::equal(piece.begin(), piece.end(),
                             expected.begin() + static_cast<ptrdiff_t>(offset)));
    }
  }
  EXPECT_EQ(Read<uint8_t>(id, kElements), expected);
  uint8_t byte = 0;
  SPW_EXPECT_ERROR(spw_read(engine_, id, kElements, &byte, 1), SPW_OUT_OF_RANGE, "past its end");
  SPW_EXPECT_ERROR(spw_write(engine_, id, ~uint64_t{0}, &byte, 2), SPW_OUT_OF_RANGE,
                   "past its end");
  SPW_EXPECT_OK(spw_read(engine_, id, kElements, nullptr, 0));
}

TEST_F(CapiBulkTest, ArithmeticIsThatOfMemory) {
  for (const DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    const std::string name(Name(dtype));
    const uint32_t id = Register(name.c_str(), static_cast<int32_t>(dtype), kRows, kColumns);
    std::vector<float> expected = Rounded(dtype, Random());
    const std::vector<std::byte> first = Encoded(dtype, expected);
    SPW_ASSERT_OK(spw_write(engine_, id, 0, first.data(), first.size()));
    for (const DType of : {DType::kF32, DType::kBF16}) {
      const std::vector<float> added = Rounded(of, Random());
      const std::vector<std::byte> bytes = Encoded(of, added);
      const float factor = -0.375f;
      SPW_ASSERT_OK(spw_add(engine_, id, bytes.data(), static_cast<int32_t>(of), factor));
      for (size_t i = 0; i < kElements; ++i) expected[i] += factor * added[i];
      expected = Rounded(dtype, expected);
    }
    SPW_ASSERT_OK(spw_scale(engine_, id, 1.1));
    for (float& value : expected) value *= 1.1f;
    expected = Rounded(dtype, expected);
    EXPECT_EQ(Read<std::byte>(id, first.size()), Encoded(dtype, expected)) << name;

    double sum = 0, exact = 0;
    for (const float value : expected) exact += double{value} * double{value};
    SPW_ASSERT_OK(spw_sum_of_squares(engine_, id, &sum));
    EXPECT_NEAR(sum, exact, exact * 1e-12);
    int32_t finite = 0;
    SPW_ASSERT_OK(spw_all_finite(engine_, id, &finite));
    EXPECT_EQ(finite, 1);
  }
}

TEST_F(CapiBulkTest, ArithmeticDoesNotDependOnTheCallersFloatingPointEnvironment) {
  std::vector<float> values = Random();
  for (size_t i = 0; i < kElements; i += 2) values[i] *= 1e-38f;  // some results are denormal
  const auto compute = [&](const char* name) {
    const uint32_t id = Register(name, SPW_F32, kRows, kColumns);
    double sum = 0;
    SPW_EXPECT_OK(spw_write(engine_, id, 0, values.data(), kElements * sizeof(float)));
    SPW_EXPECT_OK(spw_add(engine_, id, values.data(), SPW_F32, -0.7));
    SPW_EXPECT_OK(spw_scale(engine_, id, 1.1));
    SPW_EXPECT_OK(spw_sum_of_squares(engine_, id, &sum));
    return std::pair(Read<float>(id, kElements), sum);
  };
  const auto expected = compute("default");
  const OtherFloats floats;
  EXPECT_EQ(compute("other"), expected);
}

TEST_F(CapiBulkTest, OneElementThatIsNotFiniteIsFound) {
  const uint32_t id = Register("w", SPW_F32, kRows, kColumns);
  for (const float bad : {std::numeric_limits<float>::infinity(), std::nanf("")}) {
    const uint64_t at = random_() % kElements;
    SPW_ASSERT_OK(spw_write(engine_, id, 4 * at, &bad, 4));
    int32_t finite = 1;
    SPW_ASSERT_OK(spw_all_finite(engine_, id, &finite));
    EXPECT_EQ(finite, 0) << "element " << at;
    const float good = 0;
    SPW_ASSERT_OK(spw_write(engine_, id, 4 * at, &good, 4));
  }
}

TEST_F(CapiBulkTest, SumsDoNotDependOnTiles) {
  const std::vector<float> values = Random();
  std::vector<double> sums;
  for (const int64_t tile_rows : {0, 1, 7}) {
    const int64_t shape[] = {kRows, kColumns};
    spw_tensor_spec spec;
    spw_tensor_spec_init(&spec, sizeof spec);
    const std::string name = "tiles." + std::to_string(tile_rows);
    spec.name = name.c_str();
    spec.shape = shape;
    spec.rank = 2;
    spec.tile_rows = tile_rows;
    uint32_t id = 0;
    SPW_ASSERT_OK(spw_register(engine_, &spec, nullptr, nullptr, &id));
    SPW_ASSERT_OK(spw_write(engine_, id, 0, values.data(), values.size() * sizeof(float)));
    SPW_ASSERT_OK(spw_sum_of_squares(engine_, id, &sums.emplace_back()));
  }
  EXPECT_EQ(sums[0], sums[1]);
  EXPECT_EQ(sums[0], sums[2]);
}

TEST_F(CapiBulkTest, BytesHaveNoArithmetic) {
  const uint32_t id = Register("b", SPW_U8, 2, 2);
  const float one = 1;
  double sum = 0;
  int32_t finite = 0;
  SPW_EXPECT_ERROR(spw_scale(engine_, id, 2), SPW_INVALID_ARGUMENT, "is of bytes (u8)");
  SPW_EXPECT_ERROR(spw_add(engine_, id, &one, SPW_F32, 1), SPW_INVALID_ARGUMENT, "is of bytes");
  SPW_EXPECT_ERROR(spw_sum_of_squares(engine_, id, &sum), SPW_INVALID_ARGUMENT, "is of bytes");
  SPW_EXPECT_ERROR(spw_all_finite(engine_, id, &finite), SPW_INVALID_ARGUMENT, "is of bytes");
  SPW_EXPECT_ERROR(spw_add(engine_, Register("w", SPW_F32, 1, 1), &one, SPW_U8, 1),
                   SPW_INVALID_ARGUMENT, "dtype is 3");
}

}  // namespace
}  // namespace spillway::test
