// SPDX-License-Identifier: Apache-2.0
//
// The row passes of causal attention: softmax over the keys that a query may see, and its gradient.
// Values are fp32. Each call runs on the calling thread.

#ifndef SPILLWAY_TOOLS_TRAINER_KERNELS_SOFTMAX_H_
#define SPILLWAY_TOOLS_TRAINER_KERNELS_SOFTMAX_H_

#include <cstdint>

namespace spillway::trainer {

// Which keys the rows of a block of scores see. Rows come in runs of `group`, the number of query
// heads that share a key head: row r belongs to query first_query + r / group. It sees the keys up
// to and including that position, of these the last `window` (0: all). Column 0 is key first_key.
struct VisibleKeys {
  int64_t first_query = 0;
  int64_t first_key = 0;
  int64_t group = 1;
  int64_t window = 0;
};

// Turns scores[rows, keys] into probabilities in place. The scores of keys that a row does not see
// become 0.
void CausalSoftmax(const VisibleKeys& visible, int64_t rows, int64_t keys, float* scores);

// Turns dp[rows, keys], the gradient of the probabilities p, into the gradient of the scores in
// place: p·(dp − dots[row]), where dots[row] is Σ p·dp over the row.
void SoftmaxBackward(const float* p, const float* dots, int64_t rows, int64_t keys, float* dp);

// Σ a·b over n elements.
float Dot(const float* a, const float* b, int64_t n);

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_KERNELS_SOFTMAX_H_
