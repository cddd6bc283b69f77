// SPDX-License-Identifier: Apache-2.0
//
// The masked softmax of causal attention over a block of queries, and its gradient. A block of
// threads takes a row of scores.

#ifndef SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_SOFTMAX_H_
#define SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_SOFTMAX_H_

#include <cmath>
#include <cstdint>

#include "src/simt/block.h"
#include "src/simt/device_code.h"
#include "src/simt/elements.h"
#include "tools/trainer/compute/gpu/matrix.h"

namespace spillway::trainer::gpu {

// Which keys the rows of scores see. The rows are those of `queries` queries for one head after
// another; `group` heads may be interleaved, as those that share a key head are when they are
// stacked. A query sees the keys up to its own position, of these the last `window` (0: all).
// Column 0 is the key at position first_key.
struct VisibleKeys {
  int64_t first_query = 0;
  int64_t queries = 1;
  int64_t group = 1;
  int64_t first_key = 0;
  int64_t window = 0;

  SPILLWAY_SIMT int64_t query(int64_t row) const { return first_query + row / group % queries; }
  // The columns that a row sees are [begin, end).
  SPILLWAY_SIMT int64_t begin(int64_t row) const {
    const int64_t first = window == 0 ? 0 : query(row) - window + 1;
    return first > first_key ? first - first_key : 0;
  }
  SPILLWAY_SIMT int64_t end(int64_t row) const { return query(row) + 1 - first_key; }
};

// probabilities[rows, keys] = the softmax of scale·scores[rows, keys] over the keys that each row
// sees, and 0 elsewhere. It may be the scores.
struct CausalSoftmax {
  static constexpr int kThreads = 128;
  template <class Block>
  using Shared = simt::Reduction<Block, float, kThreads>;

  VisibleKeys visible;
  Matrix scores, probabilities;
  float scale = 1;

  int64_t blocks() const { return scores.rows; }

  template <class Block>
  SPILLWAY_SIMT void Run(Block& block, Shared<Block>& shared) const {
    const int64_t row = block.index();
    const int64_t begin = visible.begin(row);
    const int64_t end = visible.end(row);
    float largest = -simt::kInfinity;
    simt::ForElements<kThreads>(block, begin, end, [&](int64_t i) {
      const float score = scale * scores.Get(row, i);
      largest = largest < score ? score : largest;
    });
    largest = simt::BlockMax(block, shared, largest);
    float sum = 0;
    simt::ForElements<kThreads>(block, begin, end, [&](int64_t i) {
      sum += std::exp(scale * scores.Get(row, i) - largest);
    });
    const float factor = 1.0f / simt::BlockSum(block, shared, sum);
    simt::ForElements<kThreads>(block, 0, scores.columns, [&](int64_t i) {
      const bool is_seen = i >= begin && i < end;
      probabilities.Set(row, i,
                        is_seen ? std::exp(scale * scores.Get(row, i) - largest) * factor : 0.0f);
    });
  }
};

// ds[rows, keys] = scale·p·(dp − Σ p·dp), where the sum is over the row, dp is the gradient of the
// probabilities p, and ds that of the scores. It may be dp. Where a row does not see a key, p is 0,
// and dp is not used.
struct SoftmaxGradient {
  static constexpr int kThreads = 128;
  template <class Block>
  using Shared = simt::Reduction<Block, float, kThreads>;

  VisibleKeys visible;
  Matrix probabilities, dp, ds;
  float scale = 1;

  int64_t blocks() const { return probabilities.rows; }

  template <class Block>
  SPILLWAY_SIMT void Run(Block& block, Shared<Block>& shared) const {
    const int64_t row = block.index();
    const int64_t begin = visible.begin(row);
    const int64_t end = visible.end(row);
    float dot = 0;
    simt::ForElements<kThreads>(
        block, begin, end, [&](int64_t i) { dot += probabilities.Get(row, i) * dp.Get(row, i); });
    dot = simt::BlockSum(block, shared, dot);
    simt::ForElements<kThreads>(block, 0, dp.columns, [&](int64_t i) {
      const bool is_seen = i >= begin && i < end;
      ds.Set(row, i, is_seen ? scale * (probabilities.Get(row, i) * (dp.Get(row, i) - dot)) : 0.0f);
    });
  }
};

}  // namespace spillway::trainer::gpu

#endif  // SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_SOFTMAX_H_
