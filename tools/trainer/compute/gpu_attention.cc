// SPDX-License-Identifier: Apache-2.0
//
// Attention by blocks of queries. A block takes a window's queries [first, first + queries) of all
// heads, and the keys that they see. Its products are batches over the key heads: there is one for
// each head of the group that shares a key head.
//
//   S = Q·Kᵀ    P = softmax(scale·S)    O = P·V
//   dP = dO·Vᵀ    dS = scale·P·(dP − Σ P·dP)    dQ = dS·K    dK += dSᵀ·Q    dV += Pᵀ·dO
//
// S, dP, dQ, dK and dV are fp32. The others are operands of products and have their type.

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "tools/trainer/compute/gpu_compute.h"
#include "tools/trainer/workspace.h"

namespace spillway::trainer {
namespace {

// A block has at most kMostQueries, and fewer if its scores would be more than this.
constexpr int64_t kMostScores = int64_t{1} << 24;
constexpr int64_t kMostQueries = 128;
constexpr int64_t kLeastQueries = 16;
// Rows of scores begin at multiples of this many elements, as fast products need.
constexpr int64_t kRowElements = 8;

int64_t QueriesOfBlock(const AttentionSizes& sizes) {
  const int64_t fitting = kMostScores / (sizes.heads * sizes.length);
  const int64_t queries =
      std::clamp(fitting / kLeastQueries * kLeastQueries, kLeastQueries, kMostQueries);
  return std::min(queries, sizes.length);
}

}  // namespace

// A matrix of each key head, for one head of each group; `next` elements lie between the first
// elements of two key heads'.
struct GpuCompute::HeadMatrices {
  View view;  // of the first key head
  int64_t next = 0;
  bool transposed = false;

  HeadMatrices Transposed() const { return {view, next, !transposed}; }
};

// The matrices of a block's scores, [heads · queries, keys] each, in the order (head of the group,
// key head, query).
struct GpuCompute::ScoreMatrices {
  View scores;         // S, then dP
  View probabilities;  // P
  View d_scores;       // dS; in fp32 it is dP

  // Lays them out from `base` on; returns their bytes.
  uint64_t Bind(const AttentionSizes& sizes, DType type, int64_t queries, int64_t keys,
                std::byte* base) {
    ScratchLayout layout(base);
    const int64_t rows = sizes.heads * queries;
    const int64_t stride = (keys + kRowElements - 1) / kRowElements * kRowElements;
    const auto take = [&](DType of) {
      const auto bytes = rows * stride * static_cast<int64_t>(ElementBytes(of));
      return View{.data = layout.Take<std::byte>(bytes),
                  .stored = of,
                  .rounded = of,
                  .rows = rows,
                  .columns = keys,
                  .stride = stride};
    };
    scores = take(DType::kF32);
    probabilities = take(type);
    d_scores = type == DType::kF32 ? scores : take(type);
    return layout.peak_bytes();
  }
};

struct GpuCompute::AttentionBlock {
  AttentionSizes sizes;
  gpu::VisibleKeys visible;
  int64_t keys;
  int64_t query_row;  // of the first query
  int64_t key_row;    // of the first key
  ScoreMatrices matrices;

  int64_t group() const { return sizes.heads / sizes.kv_heads; }

  HeadMatrices Queries(const Heads& of, int64_t in_group) const {
    const View rows = of.rows.Rows(query_row, visible.queries);
    return {rows.Columns(in_group * of.head_stride, sizes.head_dim), group() * of.head_stride};
  }
  HeadMatrices Keys(const Heads& of) const {
    return {of.rows.Rows(key_row, keys).Columns(0, sizes.head_dim), of.head_stride};
  }
  HeadMatrices Scores(const View& of, int64_t in_group) const {
    return {of.Rows(in_group * sizes.kv_heads * visible.queries, visible.queries),
            visible.queries * of.stride};
  }
};

uint64_t GpuCompute::AttentionWorkBytes(const AttentionSizes& sizes) const {
  return ScoreMatrices().Bind(sizes, operand_type_, QueriesOfBlock(sizes), sizes.length, nullptr);
}

// Calls each(block) in the order of windows and queries.
template <class Each>
void GpuCompute::ForEachAttentionBlock(const AttentionArguments& attention, const Each& each) {
  const AttentionSizes& sizes = attention.sizes;
  const int64_t most = QueriesOfBlock(sizes);
  for (int64_t window = 0; window < sizes.windows; ++window) {
    for (int64_t first = 0; first < sizes.length; first += most) {
      const int64_t queries = std::min(most, sizes.length - first);
      const int64_t first_key =
          sizes.window == 0 ? 0 : std::max<int64_t>(0, first - sizes.window + 1);
      AttentionBlock block = {.sizes = sizes,
                              .visible = {.first_query = first,
                                          .queries = queries,
                                          .group = 1,
                                          .first_key = first_key,
                                          .window = sizes.window},
                              .keys = first + queries - first_key,
                              .query_row = window * sizes.length + first,
                              .key_row = window * sizes.length + first_key,
                              .matrices = {}};
      block.matrices.Bind(sizes, operand_type_, queries, block.keys, attention.work);
      each(block);
    }
  }
}

void GpuCompute::MultiplyHeads(const HeadMatrices& a, const HeadMatrices& b, Into into,
                               const HeadMatrices& d, int64_t key_heads) {
  const auto placed = [&](const HeadMatrices& of) {
    gpu::RowMajor matrix = Placed(of.view);
    matrix.batch_elements = of.next;
    return matrix;
  };
  Launch(gpu::RowMajorProduct{.a = placed(a),
                              .b = placed(b),
                              .d = placed(d),
                              .transposes_a = a.transposed,
                              .transposes_b = b.transposed,
                              .into = into,
                              .batch = key_heads});
}

// Forward and backward both call it, so that their probabilities are the same bits.
void GpuCompute::ComputeProbabilities(const AttentionArguments& attention,
                                      const AttentionBlock& block) {
  const ScoreMatrices& m = block.matrices;
  for (int64_t h = 0; h < block.group(); ++h) {
    MultiplyHeads(block.Queries(attention.query, h), block.Keys(attention.key).Transposed(),
                  Into::kOverwrite, block.Scores(m.scores, h), block.sizes.kv_heads);
  }
  Launch(gpu::CausalSoftmax{.visible = block.visible,
                            .scores = Read(m.scores),
                            .probabilities = Read(m.probabilities),
                            .scale = block.sizes.scale});
}

void GpuCompute::Attention(const AttentionArguments& attention) {
  const AttentionSizes& sizes = attention.sizes;
  Write(attention.out);
  const Heads out = {attention.out, sizes.heads, sizes.head_dim};
  ForEachAttentionBlock(attention, [&](const AttentionBlock& block) {
    ComputeProbabilities(attention, block);
    for (int64_t h = 0; h < block.group(); ++h) {
      MultiplyHeads(block.Scores(block.matrices.probabilities, h), block.Keys(attention.value),
                    Into::kOverwrite, block.Queries(out, h), sizes.kv_heads);
    }
  });
}

void GpuCompute::AttentionGradient(const AttentionGradientArguments& gradient) {
  const AttentionArguments& forward = gradient.forward;
  const AttentionSizes& sizes = forward.sizes;
  const Heads d_out = {OperandOf(gradient.out_gradient, operand_type_, Slot::kA), sizes.heads,
                       sizes.head_dim};
  Write(gradient.query_gradient.rows);
  for (const Heads& summed : {gradient.key_gradient, gradient.value_gradient}) {
    Launch(gpu::ZeroHeads{.rows = Write(summed.rows),
                          .heads = summed.heads,
                          .head_dim = sizes.head_dim,
                          .head_stride = summed.head_stride});
  }
  ForEachAttentionBlock(forward, [&](const AttentionBlock& block) {
    const ScoreMatrices& m = block.matrices;
    ComputeProbabilities(forward, block);
    for (int64_t h = 0; h < block.group(); ++h) {
      MultiplyHeads(block.Scores(m.probabilities, h).Transposed(), block.Queries(d_out, h),
                    Into::kAdd, block.Keys(gradient.value_gradient), sizes.kv_heads);
      MultiplyHeads(block.Queries(d_out, h), block.Keys(forward.value).Transposed(),
                    Into::kOverwrite, block.Scores(m.scores, h), sizes.kv_heads);
    }
    Launch(gpu::SoftmaxGradient{.visible = block.visible,
                                .probabilities = Read(m.probabilities),
                                .dp = Read(m.scores),
                                .ds = Read(m.d_scores),
                                .scale = sizes.scale});
    for (int64_t h = 0; h < block.group(); ++h) {
      MultiplyHeads(block.Scores(m.d_scores, h), block.Keys(forward.key), Into::kOverwrite,
                    block.Queries(gradient.query_gradient, h), sizes.kv_heads);
      MultiplyHeads(block.Scores(m.d_scores, h).Transposed(), block.Queries(forward.query, h),
                    Into::kAdd, block.Keys(gradient.key_gradient), sizes.kv_heads);
    }
  });
}

}  // namespace spillway::trainer
