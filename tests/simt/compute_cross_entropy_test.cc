// SPDX-License-Identifier: Apache-2.0
//
// Cross-entropy by tiles of the vocabulary and its gradient, against double precision.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "tests/simt/machine.h"
#include "tools/trainer/compute/gpu/cross_entropy.h"

namespace spillway::trainer::gpu {
namespace {

class ComputeCrossEntropy : public EachMachine {
 protected:
  // Takes in tiles of the vocabulary. Returns the loss, and has the states.
  double LossOf(const std::vector<View>& tiles, const std::vector<int32_t>& targets) {
    const auto tokens = static_cast<int64_t>(targets.size());
    targets_ = Put(targets);
    states_ = Take<SoftmaxState>(tokens);
    Launch(StartSoftmax{{states_, tokens}});
    int64_t first = 0;
    for (const View& tile : tiles) {
      Launch(GatherSoftmax{MatrixOf(tile), first, targets_, states_});
      first += tile.columns;
    }
    double* const loss = Put(std::vector<double>{0.25});
    Launch(AddLoss{states_, tokens, loss});
    return *loss - 0.25;
  }

  const int32_t* targets_ = nullptr;
  SoftmaxState* states_ = nullptr;
};

TEST_P(ComputeCrossEntropy, LossAndGradientByTiles) {
  const std::vector<std::vector<int64_t>> tilings = {{1}, {517}, {255, 1, 261}, {300, 257}};
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const std::vector<int64_t>& tiling : tilings) {
      const int64_t tokens = 7;
      std::vector<Values> logits;
      std::vector<View> tiles;
      Exact sums(tokens), target_logits(tokens);
      std::vector<int32_t> targets;
      int64_t vocabulary = 0;
      for (const int64_t columns : tiling) vocabulary += columns;
      for (int64_t t = 0; t < tokens; ++t)
        targets.push_back(static_cast<int32_t>(Draw(0, vocabulary - 1)));
      targets[0] = 0;
      targets[1] = static_cast<int32_t>(vocabulary - 1);
      targets[2] = static_cast<int32_t>(tiling[0] - 1);
      int64_t first = 0;
      for (const int64_t columns : tiling) {
        logits.push_back(Rounded(type, Random(tokens * columns, 5)));
        tiles.push_back(Put(type, tokens, columns, logits.back(), /*padding=*/2));
        for (size_t i = 0; i < logits.back().size(); ++i) {
          const size_t token = i / static_cast<size_t>(columns);
          const int64_t column = first + static_cast<int64_t>(i) % columns;
          sums[token] += std::exp(static_cast<double>(logits.back()[i]));
          if (column == targets[token]) target_logits[token] = logits.back()[i];
        }
        first += columns;
      }
      double loss = 0;
      for (size_t t = 0; t < sums.size(); ++t) loss += std::log(sums[t]) - target_logits[t];
      EXPECT_NEAR(LossOf(tiles, targets), loss / tokens, 2e-6);

      const float scale = 0.37f;
      first = 0;
      for (size_t tile = 0; tile < tiles.size(); ++tile) {
        const int64_t columns = tiles[tile].columns;
        Exact gradient;
        for (size_t i = 0; i < logits[tile].size(); ++i) {
          const size_t token = i / static_cast<size_t>(columns);
          const int64_t column = first + static_cast<int64_t>(i) % columns;
          const double p = std::exp(static_cast<double>(logits[tile][i])) / sums[token];
          gradient.push_back((p - (column == targets[token] ? 1 : 0)) * static_cast<double>(scale));
        }
        // Into the logits, or elsewhere.
        const View out = tile == 0 ? Undefined(DType::kF32, tokens, columns, 1) : tiles[tile];
        Launch(CrossEntropyGradient{MatrixOf(tiles[tile]), first, targets_, states_, scale,
                                    MatrixOf(out)});
        ExpectNear(out, gradient);
        first += columns;
      }
    }
  }
}

// e^89 is not a float, and the largest logit comes in the second tile.
TEST_P(ComputeCrossEntropy, LargeLogitsDoNotOverflow) {
  const View small = Put(DType::kF32, 2, 2, {0, -3e4f, 1, 2});
  const View large = Put(DType::kF32, 2, 1, {3e4f, -3e4f});
  EXPECT_NEAR(LossOf({small, large}, {2, 0}), (0 + std::log(std::exp(1.0) + 1)) / 2, 1e-6);
  // A loss is small beside them.
  const View near = Put(DType::kF32, 1, 2, {3e4f, 3e4f + 1});
  EXPECT_NEAR(LossOf({near}, {1}), std::log(std::exp(-1.0) + 1), 1e-6);
}

// More tokens than threads.
TEST_P(ComputeCrossEntropy, EachTokensLossIsCountedOnce) {
  std::vector<SoftmaxState> states;
  for (int token = 0; token < 601; ++token)
    states.push_back({.largest = 2, .sum = 1, .target_logit = static_cast<float>(2 - token)});
  double* const loss = Put(std::vector<double>{1});
  Launch(AddLoss{Put(states), 601, loss});
  EXPECT_EQ(*loss, 301);
}

TEST_P(ComputeCrossEntropy, NaNAndInfinityShow) {
  const float nan = std::nanf(""), infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {nan, infinity}) {
    for (const size_t at : {size_t{0}, size_t{2}}) {
      std::vector<Values> values = {{1, 2}, {3, 4}};
      values[at / 2][at % 2] = bad;
      const View first = Put(DType::kF32, 1, 2, values[0]);
      const View second = Put(DType::kF32, 1, 2, values[1]);
      EXPECT_FALSE(std::isfinite(LossOf({first, second}, {3})));
      Launch(CrossEntropyGradient{MatrixOf(first), 0, targets_, states_, 1, MatrixOf(first)});
      Launch(CrossEntropyGradient{MatrixOf(second), 2, targets_, states_, 1, MatrixOf(second)});
      EXPECT_TRUE(std::isnan(Get(at == 0 ? first : second)[0]));
    }
  }
}

SPILLWAY_ON_EACH_MACHINE(ComputeCrossEntropy);

}  // namespace
}  // namespace spillway::trainer::gpu
