// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/kernels/attention.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>

#include "tools/trainer/kernels/convert.h"
#include "tools/trainer/kernels/gemm.h"
#include "tools/trainer/kernels/softmax.h"

namespace spillway::trainer {
namespace {

// Returns the queries of a block: few enough that little is computed above the diagonal, and enough
// (times the group) that the products run near full speed.
int64_t QueriesOfBlock(const AttentionShape& shape) {
  return std::min<int64_t>(shape.length, shape.group() <= 4 ? 128 : 64);
}

int64_t NumBlocks(const AttentionShape& shape) {
  const int64_t queries = QueriesOfBlock(shape);
  return (shape.length + queries - 1) / queries;
}

// Returns the number of sets into which a head's query blocks are divided in the backward. Each
// task sums the key and value gradients of one set, so that there are enough tasks for all threads.
// Each set has its own gradients, which are added up in order at the end.
int64_t NumSets(const AttentionShape& shape, int num_threads) {
  const int64_t heads = shape.windows * shape.kv_heads;
  return std::clamp<int64_t>((2 * num_threads + heads - 1) / heads, 1, NumBlocks(shape));
}

// Later blocks have more keys. Assigning blocks to sets back and forth gives the sets equal work.
int64_t SetOfBlock(int64_t block, int64_t sets) {
  const int64_t place = block % (2 * sets);
  return place < sets ? place : 2 * sets - 1 - place;
}

// One thread's scratch: matrices over the stacked rows (query, head of the group) of a block.
struct QueryBlockScratch {
  float* q;              // [rows, head_dim], times the scale of scores
  float* out;            // [rows, head_dim]: the output, or its gradient
  float* dq;             // [rows, head_dim]
  float* probabilities;  // [rows, length]
  float* dscores;        // [rows, length]
  float* dots;           // [rows]

  static int64_t Floats(const AttentionShape& shape) {
    const int64_t rows = QueriesOfBlock(shape) * shape.group();
    return rows * (3 * shape.head_dim + 2 * shape.length + 1);
  }
  QueryBlockScratch(const AttentionShape& shape, float* base) {
    const int64_t rows = QueriesOfBlock(shape) * shape.group();
    const auto take = [&base](int64_t floats) {
      float* taken = base;
      base += floats;
      return taken;
    };
    q = take(rows * shape.head_dim);
    out = take(rows * shape.head_dim);
    dq = take(rows * shape.head_dim);
    probabilities = take(rows * shape.length);
    dscores = take(rows * shape.length);
    dots = take(rows);
  }
};

// The location of a block of queries of one window and key head.
struct BlockPlace {
  int64_t first_query;  // within its window
  int64_t queries;
  int64_t rows;       // queries · group
  int64_t first_key;  // within its window; the first that a query of the block sees
  int64_t keys;       // from first_key to the last query's own
  int64_t query_row;  // the row of the first query
  int64_t key_row;    // the row of the first key
  int64_t kv_head;
  int64_t head;  // the first of the group
};

BlockPlace Locate(const AttentionShape& shape, int64_t window, int64_t kv_head, int64_t block) {
  BlockPlace place;
  place.first_query = block * QueriesOfBlock(shape);
  place.queries = std::min(QueriesOfBlock(shape), shape.length - place.first_query);
  place.rows = place.queries * shape.group();
  place.first_key = shape.first_key(place.first_query);
  place.keys = place.first_query + place.queries - place.first_key;
  place.query_row = window * shape.length + place.first_query;
  place.key_row = window * shape.length + place.first_key;
  place.kv_head = kv_head;
  place.head = kv_head * shape.group();
  return place;
}

// Stack copies the group's heads of each query of a block to stacked rows, times `scale`; Unstack
// copies them back.
void Stack(const AttentionShape& shape, const BlockPlace& place, const HeadRows<const float>& from,
           float scale, float* rows) {
  for (int64_t i = 0; i < place.queries; ++i) {
    for (int64_t h = 0; h < shape.group(); ++h, rows += shape.head_dim) {
      const float* const head = from.At(place.query_row + i, place.head + h);
      for (int64_t j = 0; j < shape.head_dim; ++j) rows[j] = head[j] * scale;
    }
  }
}

void Unstack(const AttentionShape& shape, const BlockPlace& place, const float* rows, float scale,
             const HeadRows<float>& to) {
  for (int64_t i = 0; i < place.queries; ++i) {
    for (int64_t h = 0; h < shape.group(); ++h, rows += shape.head_dim) {
      float* const head = to.At(place.query_row + i, place.head + h);
      for (int64_t j = 0; j < shape.head_dim; ++j) head[j] = rows[j] * scale;
    }
  }
}

// The heads of an output or of its gradient.
template <typename Float>
HeadRows<Float> Packed(const AttentionShape& shape, Float* data) {
  return {data, shape.query_width(), shape.head_dim};
}

// Computes scratch.q and scratch.probabilities of a block. Forward and backward both call it, so
// that their probabilities are the same bits.
void ComputeProbabilities(const AttentionShape& shape, const BlockPlace& place,
                          const AttentionInputs& in, const QueryBlockScratch& scratch) {
  Stack(shape, place, in.q, shape.scale, scratch.q);
  Multiply({place.rows, place.keys, shape.head_dim}, Plain(scratch.q, shape.head_dim),
           Transposed(in.k.At(place.key_row, place.kv_head), in.k.stride), Into::kOverwrite,
           scratch.probabilities, place.keys);
  CausalSoftmax({.first_query = place.first_query,
                 .first_key = place.first_key,
                 .group = shape.group(),
                 .window = shape.window},
                place.rows, place.keys, scratch.probabilities);
}

// Runs task(index, thread's scratch) for each index in [0, n). A free thread takes the next index;
// this changes which thread computes what, and never the result.
void RunTasks(ThreadPool* pool, const AttentionShape& shape, float* scratch, int64_t n,
              const std::function<void(int64_t, const QueryBlockScratch&)>& task) {
  std::atomic<int64_t> next = 0;
  pool->ParallelFor(pool->num_threads(), [&](int64_t slot) {
    const QueryBlockScratch mine(shape, scratch + slot * QueryBlockScratch::Floats(shape));
    for (int64_t i = next++; i < n; i = next++) task(i, mine);
  });
}

// Computes the gradients of one set of blocks of one key head: that of its queries, and its part of
// those of keys and values.
void BackwardOfSet(const AttentionShape& shape, const AttentionInputs& in, const float* out,
                   const float* out_gradient, int64_t window, int64_t kv_head, int64_t set,
                   int64_t sets, const QueryBlockScratch& scratch,
                   const AttentionGradients& gradients) {
  const int64_t dim = shape.head_dim;
  const int64_t base = window * shape.length;
  for (int64_t row = base; row < base + shape.length; ++row) {
    std::memset(gradients.k.At(row, kv_head), 0, static_cast<size_t>(dim) * sizeof(float));
    std::memset(gradients.v.At(row, kv_head), 0, static_cast<size_t>(dim) * sizeof(float));
  }
  for (int64_t block = 0; block < NumBlocks(shape); ++block) {
    if (SetOfBlock(block, sets) != set) continue;
    const BlockPlace place = Locate(shape, window, kv_head, block);
    const MatrixView keys = Plain(in.k.At(place.key_row, kv_head), in.k.stride);
    const MatrixView values_transposed = Transposed(in.v.At(place.key_row, kv_head), in.v.stride);
    ComputeProbabilities(shape, place, in, scratch);

    Stack(shape, place, Packed(shape, out), 1.0f, scratch.dq);
    Stack(shape, place, Packed(shape, out_gradient), 1.0f, scratch.out);
    for (int64_t r = 0; r < place.rows; ++r) {
      scratch.dots[r] = Dot(scratch.out + r * dim, scratch.dq + r * dim, dim);
    }
    Multiply({place.keys, dim, place.rows}, Transposed(scratch.probabilities, place.keys),
             Plain(scratch.out, dim), Into::kAdd, gradients.v.At(place.key_row, kv_head),
             gradients.v.stride);
    Multiply({place.rows, place.keys, dim}, Plain(scratch.out, dim), values_transposed,
             Into::kOverwrite, scratch.dscores, place.keys);
    SoftmaxBackward(scratch.probabilities, scratch.dots, place.rows, place.keys, scratch.dscores);

    Multiply({place.rows, dim, place.keys}, Plain(scratch.dscores, place.keys), keys,
             Into::kOverwrite, scratch.dq, dim);
    Unstack(shape, place, scratch.dq, shape.scale, gradients.q);
    Multiply({place.keys, dim, place.rows}, Transposed(scratch.dscores, place.keys),
             Plain(scratch.q, dim), Into::kAdd, gradients.k.At(place.key_row, kv_head),
             gradients.k.stride);
  }
}

}  // namespace

int64_t AttentionScratchFloats(const AttentionShape& shape, int num_threads) {
  const int64_t key_floats = shape.windows * shape.length * shape.key_width();
  return num_threads * QueryBlockScratch::Floats(shape) +
         2 * (NumSets(shape, num_threads) - 1) * key_floats;
}

void AttentionForward(ThreadPool* pool, const AttentionShape& shape, const AttentionInputs& inputs,
                      float* scratch, float* out) {
  const int64_t blocks = NumBlocks(shape);
  const int64_t heads = shape.windows * shape.kv_heads;
  RunTasks(pool, shape, scratch, heads * blocks, [&](int64_t task, const QueryBlockScratch& mine) {
    // The last blocks take the longest, so they go first.
    const int64_t block = blocks - 1 - task / heads;
    const int64_t head = task % heads;
    const BlockPlace place = Locate(shape, head / shape.kv_heads, head % shape.kv_heads, block);
    ComputeProbabilities(shape, place, inputs, mine);
    Multiply({place.rows, shape.head_dim, place.keys}, Plain(mine.probabilities, place.keys),
             Plain(inputs.v.At(place.key_row, place.kv_head), inputs.v.stride), Into::kOverwrite,
             mine.out, shape.head_dim);
    Unstack(shape, place, mine.out, 1.0f, Packed(shape, out));
  });
}

void AttentionBackward(ThreadPool* pool, const AttentionShape& shape, const AttentionInputs& inputs,
                       const float* out, const float* out_gradient, float* scratch,
                       const AttentionGradients& gradients) {
  const int64_t heads = shape.windows * shape.kv_heads;
  const int64_t sets = NumSets(shape, pool->num_threads());
  const int64_t width = shape.key_width();
  const int64_t rows = shape.windows * shape.length;
  float* const partial = scratch + pool->num_threads() * QueryBlockScratch::Floats(shape);
  // Set 0 sums into the gradients themselves; each set s > 0 has those of keys and values in
  // scratch.
  const auto of_set = [&](int64_t set) {
    if (set == 0) return gradients;
    float* const dk = partial + 2 * (set - 1) * rows * width;
    return AttentionGradients{.q = gradients.q,
                              .k = {dk, width, shape.head_dim},
                              .v = {dk + rows * width, width, shape.head_dim}};
  };

  RunTasks(pool, shape, scratch, heads * sets, [&](int64_t task, const QueryBlockScratch& mine) {
    const int64_t set = task / heads;
    const int64_t head = task % heads;
    BackwardOfSet(shape, inputs, out, out_gradient, head / shape.kv_heads, head % shape.kv_heads,
                  set, sets, mine, of_set(set));
  });
  const auto add = [&](const HeadRows<float>& from, const HeadRows<float>& to, int64_t row) {
    if (to.head_stride == shape.head_dim) {
      AddToFloats(from.At(row, 0), width, to.At(row, 0));
      return;
    }
    for (int64_t head = 0; head < shape.kv_heads; ++head)
      AddToFloats(from.At(row, head), shape.head_dim, to.At(row, head));
  };
  pool->ParallelRanges(rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t set = 1; set < sets; ++set) {
      const AttentionGradients part = of_set(set);
      for (int64_t row = begin; row < end; ++row) {
        add(part.k, gradients.k, row);
        add(part.v, gradients.v, row);
      }
    }
  });
}

}  // namespace spillway::trainer
