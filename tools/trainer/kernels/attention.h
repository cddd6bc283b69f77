// SPDX-License-Identifier: Apache-2.0
//
// Causal grouped-query attention, forward and backward, one block of queries at a time. The scores
// of a block are held in scratch, keys beyond the block's last query are never read, and the query
// heads that share a key head are stacked into one product. The backward recomputes the
// probabilities.

#ifndef SPILLWAY_TOOLS_TRAINER_KERNELS_ATTENTION_H_
#define SPILLWAY_TOOLS_TRAINER_KERNELS_ATTENTION_H_

#include <cstdint>

#include "spillway/thread_pool.h"

namespace spillway::trainer {

// A row of q or of an output is [heads, head_dim], a row of k or v is [kv_heads, head_dim]. Window
// w has rows [w·length, (w+1)·length).
struct AttentionShape {
  int64_t windows = 0;
  int64_t length = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;  // divides heads
  int64_t head_dim = 0;

  int64_t group() const { return heads / kv_heads; }
  int64_t query_width() const { return heads * head_dim; }
  int64_t key_width() const { return kv_heads * head_dim; }
};

// Returns the floats of scratch that are enough for either direction.
int64_t AttentionScratchFloats(const AttentionShape& shape, int num_threads);

// Computes out = softmax(q·kᵀ / sqrt(head_dim), causal)·v.
void AttentionForward(ThreadPool* pool, const AttentionShape& shape, const float* q, const float* k,
                      const float* v, float* scratch, float* out);

struct AttentionTensors {
  const float* q = nullptr;
  const float* k = nullptr;
  const float* v = nullptr;
  const float* out = nullptr;  // the forward's result
  const float* out_gradient = nullptr;
};

// Overwrites dq, dk and dv, which have the shapes of q, k and v.
void AttentionBackward(ThreadPool* pool, const AttentionShape& shape,
                       const AttentionTensors& tensors, float* scratch, float* dq, float* dk,
                       float* dv);

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_KERNELS_ATTENTION_H_
