// SPDX-License-Identifier: Apache-2.0
//
// Conversions of elements, copies, zeros and additions. Each has one right result in bits.

#include <sys/mman.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "src/base/half_floats.h"
#include "src/simt/elements.h"
#include "tests/simt/machine.h"
#include "tools/trainer/compute/gpu/copies.h"
#include "tools/trainer/compute/gpu/rows.h"

namespace spillway::trainer::gpu {
namespace {

constexpr DType kTypes[] = {DType::kF32, DType::kF16, DType::kBF16};

class ComputeCopies : public EachMachine {
 protected:
  // Values that rounding treats apart: subnormals, halves between neighbours, infinities and NaN.
  Values Special(int64_t n) {
    const float infinity = std::numeric_limits<float>::infinity();
    Values values = {0.0f,      -0.0f,     infinity,  -infinity,  std::nanf("1"), 65504.0f,
                     65519.9f,  65520.0f,  -65520.0f, 0x1p-24f,   0x1p-25f,       0x1.8p-25f,
                     0x1p-126f, 0x1p-149f, 1.0f,      0x1.004p0f, 0x1.00cp0f,     0x1.01p0f,
                     0x1.03p0f, 3.4e38f,   -3.4e38f};
    const Values more = Random(n, 1e-4f);
    values.insert(values.end(), more.begin(), more.end());
    values.resize(static_cast<size_t>(n));
    return values;
  }
};

TEST_P(ComputeCopies, ElementsConvertAsOnTheHost) {
  if (GetParam() == Kind::kCuda) GTEST_SKIP() << "compares functions of the host";
  for (uint32_t bits = 0; bits < 0x10000; ++bits) {
    const auto narrow = static_cast<uint16_t>(bits);
    ASSERT_EQ(simt::BitsOf(simt::FloatOfHalf(narrow)), simt::BitsOf(base::HalfToFloat(narrow)));
    ASSERT_EQ(simt::BitsOf(simt::FloatOfBf16(narrow)), simt::BitsOf(base::Bf16ToFloat(narrow)));
  }
  // A prime stride meets every exponent, and most patterns of the bits that rounding looks at.
  for (uint64_t bits = 0; bits < (uint64_t{1} << 32); bits += 4099) {
    const float value = simt::FloatOf(static_cast<uint32_t>(bits));
    ASSERT_EQ(simt::HalfOfFloat(value), base::FloatToHalf(value)) << value;
    ASSERT_EQ(simt::Bf16OfFloat(value), base::FloatToBf16(value)) << value;
  }
  for (const float value : Special(21)) {
    ASSERT_EQ(simt::HalfOfFloat(value), base::FloatToHalf(value)) << value;
    ASSERT_EQ(simt::Bf16OfFloat(value), base::FloatToBf16(value)) << value;
  }
}

TEST_P(ComputeCopies, CopyRoundsOnce) {
  for (const DType from : kTypes) {
    for (const DType to : kTypes) {
      for (const int64_t n : {1, 1021, 2 * 1024 + 1}) {
        const Values values = Rounded(from, Special(n));
        const View source = Put(from, 1, n, values);
        const View target = Undefined(to, 1, n);
        Launch(Copy{{MatrixOf(source), MatrixOf(target)}});
        ExpectSame(target, Rounded(to, values));
        ExpectSame(source, values);
      }
    }
  }
}

TEST_P(ComputeCopies, CopyRowsLeavesWhatLiesBetween) {
  for (const DType from : kTypes) {
    for (const DType to : kTypes) {
      for (const int64_t columns : {1, 300}) {
        const Values values = Rounded(from, Special(7 * columns));
        const View source = Put(from, 7, columns, values, /*padding=*/3);
        const View target = Undefined(to, 7, columns, /*padding=*/5);
        Launch(CopyRows{MatrixOf(source), MatrixOf(target)});
        ExpectSame(target, Rounded(to, values));
        ExpectSame(source, values);
      }
    }
  }
}

// The second row begins 2^32 elements after the first. Pages that no row is in take no memory.
TEST_P(ComputeCopies, RowsMayLieFarApart) {
  if (GetParam() == Kind::kCuda) GTEST_SKIP() << "needs pages that are taken when they are written";
  constexpr int64_t kStride = int64_t{1} << 32, kColumns = 300;
  constexpr size_t kBytes = (kStride + kColumns) * sizeof(uint16_t);
  void* const far = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (far == MAP_FAILED) GTEST_SKIP() << "the system limits addresses";
  const Values values = Rounded(DType::kBF16, Random(2 * kColumns));
  const View near = Put(DType::kBF16, 2, kColumns, values);
  const View target = Undefined(DType::kBF16, 2, kColumns);
  View apart = near;
  apart.data = static_cast<std::byte*>(far);
  apart.stride = kStride;
  Launch(CopyRows{MatrixOf(near), MatrixOf(apart)});
  Launch(CopyRows{MatrixOf(apart), MatrixOf(target)});
  ExpectSame(target, values);
  munmap(far, kBytes);
}

TEST_P(ComputeCopies, ZeroHeadsLeavesWhatLiesBetween) {
  constexpr int64_t kRows = 5, kHeads = 3, kDim = 50, kStride = 53;
  constexpr int64_t kColumns = (kHeads - 1) * kStride + kDim;
  for (const DType type : kTypes) {
    Values values = Rounded(type, Random(kRows * kColumns));
    const View rows = Put(type, kRows, kColumns, values, /*padding=*/4);
    Launch(ZeroHeads{MatrixOf(rows), kHeads, kDim, kStride});
    for (int64_t i = 0; i < kRows * kColumns; ++i) {
      if (i % kColumns % kStride < kDim) values[static_cast<size_t>(i)] = 0;
    }
    ExpectSame(rows, values);
  }
}

TEST_P(ComputeCopies, ZeroIsZero) {
  for (const DType type : kTypes) {
    const View target = Undefined(type, 37, 31);
    Launch(Zero{{MatrixOf(target)}});
    ExpectSame(target, Values(37 * 31));
  }
}

TEST_P(ComputeCopies, AddRoundsOnce) {
  for (const DType from : kTypes) {
    for (const DType to : kTypes) {
      const int64_t n = 1031;
      const Values terms = Rounded(from, Special(n));
      const Values before = Rounded(to, Random(n, 0.1f));
      Values sums(static_cast<size_t>(n));
      for (size_t i = 0; i < sums.size(); ++i) sums[i] = Rounded(to, before[i] + terms[i]);
      const View target = Put(to, 1, n, before);
      Launch(Add{{MatrixOf(Put(from, 1, n, terms)), MatrixOf(target)}});
      ExpectSame(target, sums);
    }
  }
}

TEST_P(ComputeCopies, AddBiasAddsItToEachRow) {
  for (const DType type : kTypes) {
    for (const int64_t columns : {1, 257, 521}) {
      const int64_t rows = 3;
      const Values bias = Special(columns);
      const Values before = Rounded(type, Random(rows * columns));
      Values sums = before;
      for (size_t i = 0; i < sums.size(); ++i)
        sums[i] = Rounded(type, sums[i] + bias[i % bias.size()]);
      const View y = Put(type, rows, columns, before, /*padding=*/5);
      Launch(AddBias{MatrixOf(Put(DType::kF32, 1, columns, bias)), MatrixOf(y)});
      ExpectSame(y, sums);
    }
  }
}

SPILLWAY_ON_EACH_MACHINE(ComputeCopies);

}  // namespace
}  // namespace spillway::trainer::gpu
