// SPDX-License-Identifier: Apache-2.0
//
// Tests that no cut, number of threads or instruction set changes the bits of sums of squares.

#include "src/optim/tensor_sums.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "spillway/thread_pool.h"
#include "src/optim/sum_of_squares.h"
#include "tests/optim/sum_reference.h"
#include "tests/seed.h"

namespace spillway::optim {
namespace {

std::vector<float> RandomFloats(size_t n, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(n);
  for (float& value : values)
    value = normal(random) * std::exp2(static_cast<float>(random() % 40) - 20.0F);
  return values;
}

// Runs on each instruction set of this machine, by restricting dispatch to it.
class SumsOfSquares : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

TEST_P(SumsOfSquares, SumABlockToTheReferencesBitsHoweverItIsCut) {
  std::mt19937_64 random(test::Seed());
  for (const size_t n : {0, 1, 31, 32, 33, 64, 100, 1000, 16384}) {
    const std::vector<float> values = RandomFloats(n, random());
    const double expected = ReferenceBlockSum(values.data(), n);
    for (int round = 0; round < 10; ++round) {
      SumLanes sums;
      for (size_t at = 0; at < n;) {
        const size_t piece = std::min<size_t>(n - at, 1 + random() % (round < 5 ? 70 : 3000));
        AddSquares(&values[at], static_cast<int64_t>(piece), at, &sums);
        at += piece;
      }
      EXPECT_EQ(Total(sums), expected) << n;
    }
  }
}

TEST_P(SumsOfSquares, SumColumnsApart) {
  for (const size_t n : {0, 1, 7, 8, 9, 33, 500}) {
    std::vector<double> sums(n), expected(n);
    for (uint64_t row = 0; row < 5; ++row) {
      const std::vector<float> values = RandomFloats(n, row);
      AddSquaresApart(values.data(), static_cast<int64_t>(n), sums.data());
      for (size_t i = 0; i < n; ++i)
        expected[i] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
    }
    EXPECT_EQ(sums, expected) << n;
  }
}

TEST_P(SumsOfSquares, NeitherOverflowNorVanish) {
  const std::vector<float> large(40, 3e38F), small(40, 1e-40F);
  SumLanes of_large, of_small;
  AddSquares(large.data(), 40, 0, &of_large);
  AddSquares(small.data(), 40, 0, &of_small);
  EXPECT_NEAR(std::sqrt(Total(of_large)), std::sqrt(40.0) * 3e38, 1e32);
  EXPECT_NEAR(std::sqrt(Total(of_small)), std::sqrt(40.0) * 1e-40, 1e-44);
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, SumsOfSquares,
                         testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         [](const auto& test) { return std::string(hwy::TargetName(test.param)); });

// Sums a tensor that is cut into segments at random, on different numbers of threads.
TEST(TensorBlocks, GiveTheReferencesBitsForAnySegmentsAndThreads) {
  const uint64_t first = test::Seed();
  for (uint64_t seed = first; seed != first + 12; ++seed) {
    SCOPED_TRACE(test::SeedLine(seed));
    std::mt19937_64 random(seed);
    const bool is_vector = random() % 2 == 0;
    const size_t row = is_vector ? 1 + random() % 100000 : 1 + random() % 40000;
    const size_t rows = is_vector ? 1 : 1 + random() % 5;
    const std::vector<float> values = RandomFloats(row * rows, seed);
    const double expected = ReferenceSumOfSquares(values, row);
    for (const int threads : {1, 2, 4}) {
      ThreadPool pool(threads);
      TensorBlocks blocks(row);
      double sum = 0;
      for (uint64_t at = 0; at < values.size();) {
        const uint64_t left = values.size() - at;
        const uint64_t end = at + (is_vector ? std::min<uint64_t>(left, 1 + random() % 50000)
                                             : row * (1 + random() % (left / row)));
        blocks.Sum(
            &pool, at, end,
            [&](uint64_t begin, uint64_t until, uint64_t first_in_block, SumLanes* sums) {
              AddSquares(&values[begin], static_cast<int64_t>(until - begin), first_in_block,
                         &sums[0]);
            },
            [&](uint64_t, const double* sums) { sum += sums[0]; });
        at = end;
      }
      EXPECT_EQ(sum, expected);
    }
  }
}

// Each row of one element is a block. The tensor has more blocks than are kept at a time.
TEST(TensorBlocks, HandOnMoreBlocksThanTheyKeep) {
  const std::vector<float> values = RandomFloats(10000, 3);
  ThreadPool pool(2);
  TensorBlocks blocks(1);
  std::vector<uint64_t> ends;
  double sum = 0;
  blocks.Sum(
      &pool, 0, values.size(),
      [&](uint64_t begin, uint64_t end, uint64_t first, SumLanes* sums) {
        AddSquares(&values[begin], static_cast<int64_t>(end - begin), first, &sums[0]);
      },
      [&](uint64_t end, const double* sums) {
        ends.push_back(end);
        sum += sums[0];
      });
  EXPECT_EQ(sum, ReferenceSumOfSquares(values, 1));
  ASSERT_EQ(ends.size(), values.size());
  EXPECT_TRUE(std::is_sorted(ends.begin(), ends.end()));
}

}  // namespace
}  // namespace spillway::optim
