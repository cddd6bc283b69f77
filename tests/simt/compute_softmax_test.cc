// SPDX-License-Identifier: Apache-2.0
//
// The masked softmax of a block of queries and its gradient, against double precision.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "tests/simt/machine.h"
#include "tools/trainer/compute/gpu/softmax.h"

namespace spillway::trainer::gpu {
namespace {

struct BlockOfQueries {
  int64_t first_query, queries, group, heads, window;

  int64_t first_key() const {
    return window == 0 || first_query < window ? 0 : first_query - window + 1;
  }
  int64_t keys() const { return first_query + queries - first_key(); }
  int64_t rows() const { return queries * group * heads; }
  VisibleKeys visible() const { return {first_query, queries, group, first_key(), window}; }
  // Whether a row sees a column, told without the kernel's arithmetic.
  bool Sees(int64_t row, int64_t column) const {
    int64_t query = first_query;
    for (int64_t at = row; at >= group; at -= group)
      query = query + 1 == first_query + queries ? first_query : query + 1;
    const int64_t key = first_key() + column;
    return key <= query && (window == 0 || query - key < window);
  }
};

class ComputeSoftmax : public EachMachine {
 protected:
  void Check(DType type, const BlockOfQueries& block) {
    SCOPED_TRACE(testing::Message() << Name(type) << ", " << block.queries << " queries from "
                                    << block.first_query << ", window " << block.window);
    const int64_t rows = block.rows(), keys = block.keys();
    const auto n = static_cast<size_t>(keys);
    const Values scores = Random(rows * keys, 4);
    constexpr float kScale = 0.75f;
    Exact p(scores.size());
    for (int64_t row = 0; row < rows; ++row) {
      const size_t first = static_cast<size_t>(row) * n;
      double sum = 0;
      for (size_t i = 0; i < n; ++i)
        if (block.Sees(row, static_cast<int64_t>(i)))
          sum += std::exp(double{kScale * scores[first + i]});
      for (size_t i = 0; i < n; ++i) {
        if (block.Sees(row, static_cast<int64_t>(i)))
          p[first + i] = std::exp(double{kScale * scores[first + i]}) / sum;
      }
    }
    const View from = Put(DType::kF32, rows, keys, scores, /*padding=*/3);
    const View to = type == DType::kF32 ? from : Undefined(type, rows, keys, /*padding=*/5);
    Launch(CausalSoftmax{block.visible(), MatrixOf(from), MatrixOf(to), kScale});
    ExpectNear(to, p);

    // The gradient is that of the probabilities as they are stored.
    const Values stored = Get(to);
    const Values dp = Random(rows * keys);
    Exact ds(stored.size());
    for (int64_t row = 0; row < rows; ++row) {
      const size_t first = static_cast<size_t>(row) * n;
      double dot = 0;
      for (size_t i = 0; i < n; ++i) dot += static_cast<double>(stored[first + i]) * dp[first + i];
      for (size_t i = 0; i < n; ++i)
        ds[first + i] = kScale * (stored[first + i] * (dp[first + i] - dot));
    }
    // Where a row does not see a key, the gradient of its probability may be anything.
    Values given = dp;
    for (size_t i = 0; i < given.size(); ++i) {
      const auto at = static_cast<int64_t>(i);
      if (!block.Sees(at / keys, at % keys)) given[i] = std::nanf("");
    }
    const View gradient = Put(DType::kF32, rows, keys, given, /*padding=*/2);
    const View out = type == DType::kF32 ? gradient : Undefined(type, rows, keys);
    Launch(
        SoftmaxGradient{block.visible(), MatrixOf(to), MatrixOf(gradient), MatrixOf(out), kScale});
    ExpectNear(out, ds);
  }
};

TEST_P(ComputeSoftmax, EachRowSeesItsKeys) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    // Heads one after another.
    Check(type, {.first_query = 0, .queries = 7, .group = 1, .heads = 3, .window = 0});
    Check(type, {.first_query = 131, .queries = 5, .group = 1, .heads = 2, .window = 0});
    // Heads that share a key head, stacked.
    Check(type, {.first_query = 128, .queries = 3, .group = 3, .heads = 1, .window = 0});
    // A window of keys.
    Check(type, {.first_query = 150, .queries = 7, .group = 2, .heads = 2, .window = 137});
    Check(type, {.first_query = 2, .queries = 7, .group = 1, .heads = 2, .window = 4});
  }
  Check(DType::kF32, {.first_query = 0, .queries = 1, .group = 1, .heads = 1, .window = 0});
  Check(DType::kF32, {.first_query = 9, .queries = 4, .group = 1, .heads = 1, .window = 1});
}

TEST_P(ComputeSoftmax, LargeScoresDoNotOverflowOrVanish) {
  const VisibleKeys visible = {.first_query = 1, .queries = 1, .group = 1, .first_key = 0};
  for (const float score : {3e4f, -3e4f}) {
    for (const float scale : {1.0f, 0.25f}) {
      const View scores = Put(DType::kF32, 1, 2, {score, score});
      Launch(CausalSoftmax{visible, MatrixOf(scores), MatrixOf(scores), scale});
      ExpectSame(scores, {0.5f, 0.5f});
    }
  }
}

TEST_P(ComputeSoftmax, NaNAndInfinityShowInTheRowsThatSeeThem) {
  const float nan = std::nanf(""), infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {nan, infinity}) {
    const VisibleKeys visible = {.first_query = 0, .queries = 3, .group = 1, .first_key = 0};
    Values scores(9, 0.0f);
    scores[2] = scores[5] = bad;  // not seen by their rows
    scores[6] = bad;
    const View view = Put(DType::kF32, 3, 3, scores);
    Launch(CausalSoftmax{visible, MatrixOf(view), MatrixOf(view)});
    const Values got = Get(view);
    EXPECT_EQ(Values(got.begin(), got.begin() + 6), Values({1, 0, 0, 0.5f, 0.5f, 0}));
    EXPECT_TRUE(std::isnan(got[6]));
    Launch(SoftmaxGradient{visible, MatrixOf(view),
                           MatrixOf(Put(DType::kF32, 3, 3, Values(9, 1.0f))), MatrixOf(view)});
    EXPECT_TRUE(std::isnan(Get(view)[6]));
    EXPECT_EQ(Get(view)[4], 0.0f);
  }
}

SPILLWAY_ON_EACH_MACHINE(ComputeSoftmax);

}  // namespace
}  // namespace spillway::trainer::gpu
