// SPDX-License-Identifier: Apache-2.0
//
// Cross-entropy over a vocabulary that is processed one tile of columns at a time. An online
// softmax (Milakov and Gimelshein, arXiv:1805.02867) accumulates what the loss needs; each tile's
// gradient is computed after that. Each call runs on the calling thread, for a range of tokens.

#ifndef SPILLWAY_TOOLS_TRAINER_KERNELS_CROSS_ENTROPY_H_
#define SPILLWAY_TOOLS_TRAINER_KERNELS_CROSS_ENTROPY_H_

#include <cstdint>
#include <limits>

namespace spillway::trainer {

// One token's softmax over the columns processed so far; `sum` is the sum of e^(logit − largest).
struct OnlineSoftmax {
  double sum = 0;
  float largest = -std::numeric_limits<float>::infinity();
  float target_logit = 0;

  double Loss() const;  // −log p(target), after all columns
};

// Adds columns [first_column, first_column + columns) of each of `tokens` rows of logits to the
// row's state.
void GatherSoftmax(const float* logits, int64_t tokens, int64_t first_column, int64_t columns,
                   const int32_t* targets, OnlineSoftmax* states);

// Computes gradients[tokens, columns] = (p − [column is target]) · scale. `gradients` may be
// `logits`.
void CrossEntropyBackward(const float* logits, int64_t tokens, int64_t first_column,
                          int64_t columns, const int32_t* targets, const OnlineSoftmax* states,
                          float scale, float* gradients);

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_KERNELS_CROSS_ENTROPY_H_
