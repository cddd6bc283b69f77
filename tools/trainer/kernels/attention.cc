// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/kernels/attention.h"

#include <algorithm>
#include <atomic>
#include <cmath>
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
  float* q;              // [rows, head_dim], scaled by 1/sqrt(head_dim)
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
  int64_t rows;          // queries · group
  int64_t keys;          // visible to its last query
  int64_t query_offset;  // of its first row's first head, in q and in outputs
  int64_t key_offset;    // of the window's first row of this head, in k and v
};

BlockPlace Locate(const AttentionShape& shape, int64_t window, int64_t kv_head, int64_t block) {
  BlockPlace place;
  place.first_query = block * QueriesOfBlock(shape);
  place.queries = std::min(QueriesOfBlock(shape), shape.length - place.first_query);
  place.rows = place.queries * shape.group();
  place.keys = place.first_query + place.queries;
  place.query_offset = (window * shape.length + place.first_query) * shape.query_width() +
                       kv_head * shape.group() * shape.head_dim;
  place.key_offset = window * shape.length * shape.key_width() + kv_head * shape.head_dim;
  return place;
}

// Stack copies the group's heads of each query of a block to stacked rows, times `scale`; Unstack
// copies them back.
void Stack(const AttentionShape& shape, const BlockPlace& place, const float* from, float scale,
           float* rows) {
  const int64_t run = shape.group() * shape.head_dim;
  for (int64_t i = 0; i < place.queries; ++i, from += shape.query_width(), rows += run) {
    for (int64_t j = 0; j < run; ++j) rows[j] = from[j] * scale;
  }
}

void Unstack(const AttentionShape& shape, const BlockPlace& place, const float* rows, float scale,
             float* to) {
  const int64_t run = shape.group() * shape.head_dim;
  for (int64_t i = 0; i < place.queries; ++i, to += shape.query_width(), rows += run) {
    for (int64_t j = 0; j < run; ++j) to[j] = rows[j] * scale;
  }
}

float ScoreScale(const AttentionShape& shape) {
  return static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.head_dim)));
}

// Computes scratch.q and scratch.probabilities of a block. Forward and backward both call it, so
// that their probabilities are the same bits.
void ComputeProbabilities(const AttentionShape& shape, const BlockPlace& place, const float* q,
                          const float* k, const QueryBlockScratch& scratch) {
  Stack(shape, place, q + place.query_offset, ScoreScale(shape), scratch.q);
  Multiply({place.rows, place.keys, shape.head_dim}, Plain(scratch.q, shape.head_dim),
           Transposed(k + place.key_offset, shape.key_width()), Into::kOverwrite,
           scratch.probabilities, place.keys);
  CausalSoftmax(place.first_query, shape.group(), place.rows, place.keys, scratch.probabilities);
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

// Computes the gradients of one set of blocks of one key head: dq of its queries, and its part of
// dk and dv.
void BackwardOfSet(const AttentionShape& shape, const AttentionTensors& t, int64_t window,
                   int64_t kv_head, int64_t set, int64_t sets, const QueryBlockScratch& scratch,
                   float* dq, float* dk, float* dv) {
  const int64_t width = shape.key_width();
  const int64_t dim = shape.head_dim;
  const int64_t base = Locate(shape, window, kv_head, 0).key_offset;
  for (int64_t row = 0; row < shape.length; ++row) {
    std::memset(dk + base + row * width, 0, static_cast<size_t>(dim) * sizeof(float));
    std::memset(dv + base + row * width, 0, static_cast<size_t>(dim) * sizeof(float));
  }
  for (int64_t block = 0; block < NumBlocks(shape); ++block) {
    if (SetOfBlock(block, sets) != set) continue;
    const BlockPlace place = Locate(shape, window, kv_head, block);
    const MatrixView keys = Plain(t.k + base, width);
    const MatrixView values_transposed = Transposed(t.v + base, width);
    ComputeProbabilities(shape, place, t.q, t.k, scratch);

    Stack(shape, place, t.out + place.query_offset, 1.0f, scratch.dq);
    Stack(shape, place, t.out_gradient + place.query_offset, 1.0f, scratch.out);
    for (int64_t r = 0; r < place.rows; ++r) {
      scratch.dots[r] = Dot(scratch.out + r * dim, scratch.dq + r * dim, dim);
    }
    Multiply({place.keys, dim, place.rows}, Transposed(scratch.probabilities, place.keys),
             Plain(scratch.out, dim), Into::kAdd, dv + base, width);
    Multiply({place.rows, place.keys, dim}, Plain(scratch.out, dim), values_transposed,
             Into::kOverwrite, scratch.dscores, place.keys);
    SoftmaxBackward(scratch.probabilities, scratch.dots, place.rows, place.keys, scratch.dscores);

    Multiply({place.rows, dim, place.keys}, Plain(scratch.dscores, place.keys), keys,
             Into::kOverwrite, scratch.dq, dim);
    Unstack(shape, place, scratch.dq, ScoreScale(shape), dq + place.query_offset);
    Multiply({place.keys, dim, place.rows}, Transposed(scratch.dscores, place.keys),
             Plain(scratch.q, dim), Into::kAdd, dk + base, width);
  }
}

}  // namespace

int64_t AttentionScratchFloats(const AttentionShape& shape, int num_threads) {
  const int64_t key_floats = shape.windows * shape.length * shape.key_width();
  return num_threads * QueryBlockScratch::Floats(shape) +
         2 * (NumSets(shape, num_threads) - 1) * key_floats;
}

void AttentionForward(ThreadPool* pool, const AttentionShape& shape, const float* q, const float* k,
                      const float* v, float* scratch, float* out) {
  const int64_t blocks = NumBlocks(shape);
  const int64_t heads = shape.windows * shape.kv_heads;
  RunTasks(pool, shape, scratch, heads * blocks, [&](int64_t task, const QueryBlockScratch& mine) {
    // The last blocks take the longest, so they go first.
    const int64_t block = blocks - 1 - task / heads;
    const int64_t head = task % heads;
    const BlockPlace place = Locate(shape, head / shape.kv_heads, head % shape.kv_heads, block);
    ComputeProbabilities(shape, place, q, k, mine);
    Multiply({place.rows, shape.head_dim, place.keys}, Plain(mine.probabilities, place.keys),
             Plain(v + place.key_offset, shape.key_width()), Into::kOverwrite, mine.out,
             shape.head_dim);
    Unstack(shape, place, mine.out, 1.0f, out + place.query_offset);
  });
}

void AttentionBackward(ThreadPool* pool, const AttentionShape& shape,
                       const AttentionTensors& tensors, float* scratch, float* dq, float* dk,
                       float* dv) {
  const int64_t heads = shape.windows * shape.kv_heads;
  const int64_t sets = NumSets(shape, pool->num_threads());
  const int64_t key_floats = shape.windows * shape.length * shape.key_width();
  float* const partial = scratch + pool->num_threads() * QueryBlockScratch::Floats(shape);
  // Set 0 sums into dk and dv themselves; each set s > 0 has its own dk and dv in scratch.
  const auto partial_dk = [&](int64_t set) { return partial + 2 * (set - 1) * key_floats; };
  const auto partial_dv = [&](int64_t set) { return partial_dk(set) + key_floats; };

  RunTasks(pool, shape, scratch, heads * sets, [&](int64_t task, const QueryBlockScratch& mine) {
    const int64_t set = task / heads;
    const int64_t head = task % heads;
    BackwardOfSet(shape, tensors, head / shape.kv_heads, head % shape.kv_heads, set, sets, mine, dq,
                  set == 0 ? dk : partial_dk(set), set == 0 ? dv : partial_dv(set));
  });
  pool->ParallelRanges(key_floats, 64, [&](int64_t begin, int64_t end) {
    for (int64_t set = 1; set < sets; ++set) {
      AddToFloats(partial_dk(set) + begin, end - begin, dk + begin);
      AddToFloats(partial_dv(set) + begin, end - begin, dv + begin);
    }
  });
}

}  // namespace spillway::trainer
