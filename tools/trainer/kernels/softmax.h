// SPDX-License-Identifier: Apache-2.0
//
// The row passes of causal attention: softmax over the keys that a query may see, and its gradient.
// fp32, one thread a call.

#ifndef SPILLWAY_TOOLS_TRAINER_KERNELS_SOFTMAX_H_
#define SPILLWAY_TOOLS_TRAINER_KERNELS_SOFTMAX_H_

#include <cstdint>

namespace spillway::trainer {

// scores[rows, keys] become probabilities in place. Rows come in runs of `group` (the query heads
// that share a key head); row r belongs to query first_query + r / group and sees that many keys
// and one. What it does not see becomes 0.
void CausalSoftmax(int64_t first_query, int64_t group, int64_t rows, int64_t keys, float* scores);

// dp[rows, keys], the gradient of the probabilities p, becomes that of the scores: p·(dp −
// dots[row]), where dots is Σ p·dp over the row.
void SoftmaxBackward(const float* p, const float* dots, int64_t rows, int64_t keys, float* dp);

// Σ a·b over n elements.
float Dot(const float* a, const float* b, int64_t n);

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_KERNELS_SOFTMAX_H_
