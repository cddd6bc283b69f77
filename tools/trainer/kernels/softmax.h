// SPDX-License-Identifier: Apache-2.0
//
// The row passes of causal attention: softmax over the keys that a query may see, and its gradient.
// Values are fp32. Each call runs on the calling thread.

#ifndef SPILLWAY_TOOLS_TRAINER_KERNELS_SOFTMAX_H_
#define SPILLWAY_TOOLS_TRAINER_KERNELS_SOFTMAX_H_

#include <cstdint>

namespace spillway::trainer {

// Turns scores[rows, keys] into probabilities in place. Rows come in runs of `group`, the number of
// query heads that share a key head. Row r belongs to query first_query + r / group, and sees the
// keys up to and including that position. The scores of all other keys become 0.
void CausalSoftmax(int64_t first_query, int64_t group, int64_t rows, int64_t keys, float* scores);

// Turns dp[rows, keys], the gradient of the probabilities p, into the gradient of the scores in
// place: p·(dp − dots[row]), where dots[row] is Σ p·dp over the row.
void SoftmaxBackward(const float* p, const float* dots, int64_t rows, int64_t keys, float* dp);

// Σ a·b over n elements.
float Dot(const float* a, const float* b, int64_t n);

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_KERNELS_SOFTMAX_H_
