// SPDX-License-Identifier: Apache-2.0
//
// Sums of squares, and sums of columns.

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "tests/simt/machine.h"
#include "tools/trainer/compute/gpu/sums.h"

namespace spillway::trainer::gpu {
namespace {

class ComputeSums : public EachMachine {
 protected:
  double SquaresOf(const View& tile) {
    SumOfSquares squares = {MatrixOf(tile), nullptr};
    squares.sums = Take<double>(squares.blocks());
    double* const sum = Take<double>(1);
    Launch(squares);
    Launch(AddUp{squares.sums, squares.blocks(), sum});
    return *sum;
  }
};

TEST_P(ComputeSums, SumOfSquaresIsThatOfDoubles) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const int64_t n : {1, 4096, 4097, 12289}) {
      const Values values = Rounded(type, Random(n, 3));
      double expected = 0;
      for (const float value : values) expected += static_cast<double>(value) * value;
      EXPECT_NEAR(SquaresOf(Put(type, 1, n, values)), expected, 1e-13 * expected) << n;
    }
  }
}

TEST_P(ComputeSums, SumOfSquaresOfTheLargestIsFinite) {
  const float most = std::numeric_limits<float>::max();
  EXPECT_DOUBLE_EQ(SquaresOf(Put(DType::kF32, 1, 2, {most, -most})),
                   2 * static_cast<double>(most) * most);
}

TEST_P(ComputeSums, SumOfSquaresShowsNaNAndInfinity) {
  const float infinity = std::numeric_limits<float>::infinity();
  for (const size_t at : {size_t{0}, size_t{4999}}) {
    Values values(5000, 1.0f);
    values[at] = -infinity;
    EXPECT_EQ(SquaresOf(Put(DType::kBF16, 1, 5000, values)), static_cast<double>(infinity));
    values[at] = std::nanf("");
    EXPECT_TRUE(std::isnan(SquaresOf(Put(DType::kF16, 1, 5000, values))));
  }
}

// More numbers than threads.
TEST_P(ComputeSums, AddUpTakesEachNumberOnce) {
  for (const int64_t n : {0, 1, 255, 257, 1009}) {
    std::vector<double> numbers;
    double expected = 0;
    for (int64_t i = 0; i < n; ++i)
      expected += numbers.emplace_back(static_cast<double>(i * i + 1));
    double* const sum = Take<double>(1);
    Launch(AddUp{Put(numbers), n, sum});
    EXPECT_EQ(*sum, expected) << n;  // whole numbers are exact
  }
}

TEST_P(ComputeSums, BiasGradientIsTheSumOfTheRows) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const int64_t rows : {1, 15, 17, 97}) {
      for (const int64_t columns : {1, 31, 33, 67}) {
        const Values dy = Rounded(type, Random(rows * columns));
        Exact sums(static_cast<size_t>(columns)), of_sizes = sums;  // sums of absolute values
        for (size_t i = 0; i < dy.size(); ++i) {
          sums[i % sums.size()] += static_cast<double>(dy[i]);
          of_sizes[i % sums.size()] += std::fabs(static_cast<double>(dy[i]));
        }
        const View gradient = Undefined(DType::kF32, 1, columns);
        Launch(BiasGradient{
            {MatrixOf(Put(type, rows, columns, dy, /*padding=*/3)), MatrixOf(gradient)}});
        ExpectNear(gradient, sums, 2e-6, *std::ranges::max_element(of_sizes));
      }
    }
  }
}

TEST_P(ComputeSums, BiasGradientShowsNaNInItsColumnAlone) {
  Values dy(20 * 40, 1.0f);
  dy[19 * 40 + 33] = std::nanf("");
  const View gradient = Undefined(DType::kF32, 1, 40);
  Launch(BiasGradient{{MatrixOf(Put(DType::kF32, 20, 40, dy)), MatrixOf(gradient)}});
  Values expected(40, 20.0f);
  expected[33] = std::nanf("");
  ExpectSame(gradient, expected);
}

SPILLWAY_ON_EACH_MACHINE(ComputeSums);

}  // namespace
}  // namespace spillway::trainer::gpu
