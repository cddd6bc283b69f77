// SPDX-License-Identifier: Apache-2.0
//
// Causal grouped-query attention, forward and backward, one block of queries at a time. The scores
// of a block are held in scratch, keys that no query of the block sees are never read, and the
// query heads that share a key head are stacked into one product. The backward recomputes the
// probabilities.

#ifndef SPILLWAY_TOOLS_TRAINER_KERNELS_ATTENTION_H_
#define SPILLWAY_TOOLS_TRAINER_KERNELS_ATTENTION_H_

#include <cstdint>

#include "spillway/thread_pool.h"
#include "tools/trainer/kernels/head_rows.h"

namespace spillway::trainer {

// An output's row is [heads, head_dim]. Window w has rows [w·length, (w+1)·length).
struct AttentionShape {
  int64_t windows = 0;
  int64_t length = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;  // divides heads
  int64_t head_dim = 0;
  int64_t window = 0;  // the keys that a query sees, its own included; 0: all before it
  float scale = 0;     // of query·key

  int64_t group() const { return heads / kv_heads; }
  int64_t query_width() const { return heads * head_dim; }
  int64_t key_width() const { return kv_heads * head_dim; }
  // The first key that a query sees; both are positions in a window.
  int64_t first_key(int64_t query) const {
    return window == 0 || query < window ? 0 : query - window + 1;
  }
};

// Returns the floats of scratch that are enough for either direction.
int64_t AttentionScratchFloats(const AttentionShape& shape, int num_threads);

struct AttentionInputs {
  HeadRows<const float> q;  // [heads, head_dim] a row
  HeadRows<const float> k;  // [kv_heads, head_dim] a row
  HeadRows<const float> v;  // [kv_heads, head_dim] a row
};

// Computes out = softmax(scale · q·kᵀ over the visible keys)·v.
void AttentionForward(ThreadPool* pool, const AttentionShape& shape, const AttentionInputs& inputs,
                      float* scratch, float* out);

struct AttentionGradients {
  HeadRows<float> q;
  HeadRows<float> k;
  HeadRows<float> v;
};

// Overwrites the gradients of the inputs. `out` is the forward's result.
void AttentionBackward(ThreadPool* pool, const AttentionShape& shape, const AttentionInputs& inputs,
                       const float* out, const float* out_gradient, float* scratch,
                       const AttentionGradients& gradients);

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_KERNELS_ATTENTION_H_
