// SPDX-License-Identifier: Apache-2.0
//
// Cross-entropy over a vocabulary that is seen a tile of columns at a time: an online softmax
// (Milakov and Gimelshein, arXiv:1805.02867) gathers what the loss needs, then each tile's gradient
// follows. One thread a call on a range of tokens.

#ifndef SPILLWAY_TOOLS_TRAINER_KERNELS_CROSS_ENTROPY_H_
#define SPILLWAY_TOOLS_TRAINER_KERNELS_CROSS_ENTROPY_H_

#include <cstdint>
#include <limits>

namespace spillway::trainer {

// One token's softmax over the columns seen so far: e^(logit − largest) sums to `sum`.
struct OnlineSoftmax {
  double sum = 0;
  float largest = -std::numeric_limits<float>::infinity();
  float target_logit = 0;

  double Loss() const;  // −log p(target), after all columns
};

// Takes in columns [first_column, first_column + columns) for each of `tokens` rows of logits.
void GatherSoftmax(const float* logits, int64_t tokens, int64_t first_column, int64_t columns,
                   const int32_t* targets, OnlineSoftmax* states);

// gradients[tokens, columns] = (p − [column is target]) · scale. `gradients` may be `logits`.
void CrossEntropyBackward(const float* logits, int64_t tokens, int64_t first_column,
                          int64_t columns, const int32_t* targets, const OnlineSoftmax* states,
                          float scale, float* gradients);

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_KERNELS_CROSS_ENTROPY_H_
