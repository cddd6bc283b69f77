// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/compute/host_compute.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

#include "src/base/status_macros.h"
#include "tools/trainer/compute/peak_flops.h"
#include "tools/trainer/kernels/attention.h"
#include "tools/trainer/kernels/convert.h"
#include "tools/trainer/kernels/cross_entropy.h"
#include "tools/trainer/kernels/elementwise.h"
#include "tools/trainer/kernels/gemm.h"
#include "tools/trainer/kernels/head_rows.h"
#include "tools/trainer/kernels/norm.h"
#include "tools/trainer/kernels/rope.h"

namespace spillway::trainer {
namespace {

// The least work that a thread takes, in elements.
constexpr int64_t kCopyGrain = 4096;
constexpr int64_t kActivationGrain = 1024;
// Elements of a block whose squares are summed apart.
constexpr int64_t kSumBlock = 4096;
// Rows of a block whose shares of a norm's gradient are summed apart.
constexpr int64_t kNormBlock = 32;

int64_t NumBlocks(int64_t n, int64_t block) { return (n + block - 1) / block; }

float* Floats(const View& view) { return reinterpret_cast<float*>(view.data); }

float* RowOf(const View& view, int64_t row) { return Floats(view) + row * view.stride; }

OnlineSoftmax* States(std::byte* states) { return reinterpret_cast<OnlineSoftmax*>(states); }
const OnlineSoftmax* States(const std::byte* states) {
  return reinterpret_cast<const OnlineSoftmax*>(states);
}

template <typename Float>
HeadRows<Float> RowsOf(const Heads& heads) {
  return {Floats(heads.rows), heads.rows.stride, heads.head_stride};
}

AttentionShape ShapeOf(const AttentionSizes& sizes) {
  return {.windows = sizes.windows,
          .length = sizes.length,
          .heads = sizes.heads,
          .kv_heads = sizes.kv_heads,
          .head_dim = sizes.head_dim,
          .window = sizes.window,
          .scale = sizes.scale};
}

AttentionInputs InputsOf(const AttentionArguments& attention) {
  return {.q = RowsOf<const float>(attention.query),
          .k = RowsOf<const float>(attention.key),
          .v = RowsOf<const float>(attention.value)};
}

}  // namespace

absl::StatusOr<std::unique_ptr<HostCompute>> HostCompute::Create(ThreadPool* pool) {
  SPILLWAY_RETURN_IF_ERROR(LoadBlas(pool->num_threads()));
  return std::unique_ptr<HostCompute>(new HostCompute(pool));
}

// --- Scratch ---

// Each block of rows has its own shares of the gradients of scale and shift.
uint64_t HostCompute::NormWorkBytes(NormKind kind, int64_t rows, int64_t width) const {
  const int64_t vectors = kind == NormKind::kLayer ? 2 : 1;
  return static_cast<uint64_t>(NumBlocks(rows, kNormBlock) * vectors * width) * sizeof(float);
}

uint64_t HostCompute::AttentionWorkBytes(const AttentionSizes& sizes) const {
  return static_cast<uint64_t>(AttentionScratchFloats(ShapeOf(sizes), pool_->num_threads())) *
         sizeof(float);
}

uint64_t HostCompute::SoftmaxBytes(int64_t tokens) const {
  return static_cast<uint64_t>(tokens) * sizeof(OnlineSoftmax);
}

double HostCompute::PeakFlops() { return *MeasurePeakFlops(pool_); }  // Create has loaded BLAS

double HostCompute::CopyRate() { return MeasureCopyRate(pool_); }

absl::StatusOr<std::byte*> HostCompute::Reserve(const ScratchNeeds& needs) {
  std::byte* views = nullptr;
  const auto bind = [&](ScratchLayout layout) {
    views = layout.Take<std::byte>(static_cast<int64_t>(needs.view_bytes));
    weight_tile_ = layout.Take<float>(needs.largest_narrow_tile_elements);
    gradient_tile_ = layout.Take<float>(needs.largest_gradient_elements);
    block_sums_ = layout.Take<double>(NumBlocks(needs.largest_gradient_elements, kSumBlock));
    return layout.peak_bytes();
  };
  SPILLWAY_ASSIGN_OR_RETURN(workspace_, Workspace::Create(bind(ScratchLayout())));
  bind(ScratchLayout(workspace_->data()));
  sums_.assign(needs.num_sums, 0.0);
  return views;
}

// Rounds what was written to the view's type.
void HostCompute::Round(const View& view) {
  if (view.rounded == view.stored) return;
  if (view.is_contiguous()) {
    pool_->ParallelRanges(view.elements(), kCopyGrain, [&](int64_t begin, int64_t end) {
      RoundTo(view.rounded, Floats(view) + begin, end - begin);
    });
    return;
  }
  pool_->ParallelRanges(view.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row)
      RoundTo(view.rounded, RowOf(view, row), view.columns);
  });
}

// --- Copies ---

void HostCompute::CopyFromTile(const View& tile, Lease lease, const View& to) {
  pool_->ParallelRanges(tile.elements(), kCopyGrain, [&](int64_t begin, int64_t end) {
    ToFloats(tile.stored, ElementAt(tile.stored, tile.data, begin), end - begin,
             Floats(to) + begin);
  });
  lease.Release();
}

void HostCompute::CopyToTile(const View& from, const View& tile, Lease lease) {
  pool_->ParallelRanges(tile.elements(), kCopyGrain, [&](int64_t begin, int64_t end) {
    FromFloats(tile.stored, Floats(from) + begin, end - begin,
               ElementAt(tile.stored, tile.data, begin));
  });
  lease.Release();
}

void HostCompute::Copy(const View& from, const View& to) {
  std::memcpy(to.data, from.data, static_cast<size_t>(from.elements()) * sizeof(float));
}

void HostCompute::Zero(const View& to) {
  std::memset(to.data, 0, static_cast<size_t>(to.elements()) * sizeof(float));
}

void HostCompute::Add(const View& from, const View& to) {
  pool_->ParallelRanges(to.elements(), kCopyGrain, [&](int64_t begin, int64_t end) {
    AddToFloats(Floats(from) + begin, end - begin, Floats(to) + begin);
  });
  Round(to);
}

// --- Linears ---

void HostCompute::Multiply(const Product& product, Lease lease) {
  const View& w = product.w;
  const float* weights = Floats(w);
  if (w.stored != DType::kF32) {
    pool_->ParallelRanges(w.elements(), kCopyGrain, [&](int64_t begin, int64_t end) {
      ToFloats(w.stored, ElementAt(w.stored, w.data, begin), end - begin, weight_tile_ + begin);
    });
    lease.Release();
    weights = weight_tile_;
  }
  const View& c = product.c;
  ParallelMultiply(pool_, {c.rows, c.columns, product.a.columns},
                   Plain(Floats(product.a), product.a.stride),
                   product.transposed ? Transposed(weights, w.stride) : Plain(weights, w.stride),
                   product.into, Floats(c), c.stride);
  lease.Release();
  Round(c);
}

void HostCompute::MultiplyGradient(const ProductGradient& product, Lease lease) {
  const View& tile = product.into.tile;
  const bool is_in_place = product.into.into == Into::kOverwrite && tile.stored == DType::kF32;
  float* const out = is_in_place ? Floats(tile) : gradient_tile_;
  ParallelMultiply(pool_, {tile.rows, tile.columns, product.a.rows},
                   Transposed(Floats(product.a), product.a.stride),
                   Plain(Floats(product.b), product.b.stride), Into::kOverwrite, out, tile.columns);
  Accumulate(is_in_place ? nullptr : gradient_tile_, product.into);
  lease.Release();
}

void HostCompute::AddBias(const View& bias, const View& y) {
  pool_->ParallelRanges(y.rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) AddToFloats(Floats(bias), y.columns, RowOf(y, row));
  });
  Round(y);
}

// Each thread takes its own columns through all rows, so that the sums do not depend on the number
// of threads.
void HostCompute::BiasGradient(const View& dy, const View& bias_gradient) {
  constexpr int64_t kColumns = 16;
  pool_->ParallelRanges(dy.columns, kColumns, [&](int64_t begin, int64_t end) {
    float* const out = Floats(bias_gradient) + begin;
    std::fill_n(out, end - begin, 0.0f);
    for (int64_t row = 0; row < dy.rows; ++row)
      AddToFloats(RowOf(dy, row) + begin, end - begin, out);
  });
}

void HostCompute::Accumulate(const View& from, const GradientTile& into, Lease lease) {
  Accumulate(Floats(from), into);
  lease.Release();
}

// Adds `from`, or overwrites with it; null: the tile has its elements already. Then sums squares.
void HostCompute::Accumulate(const float* from, const GradientTile& into) {
  const bool sums = into.sum != GradientTile::kNoSum;
  if (from == nullptr && !sums) return;
  const DType type = into.tile.stored;
  const int64_t elements = into.tile.elements();
  const int64_t blocks = NumBlocks(elements, kSumBlock);
  pool_->ParallelRanges(blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t at = block * kSumBlock;
      const int64_t n = std::min(kSumBlock, elements - at);
      std::byte* const stored = ElementAt(type, into.tile.data, at);
      if (from != nullptr) {
        into.into == Into::kOverwrite ? FromFloats(type, from + at, n, stored)
                                      : AddTo(type, from + at, n, stored);
      }
      if (sums) block_sums_[block] = SumOfSquares(type, stored, n);
    }
  });
  if (!sums) return;
  double total = 0;
  for (int64_t block = 0; block < blocks; ++block) total += block_sums_[block];
  sums_[into.sum] = total;
}

// --- Embeddings ---

void HostCompute::LookUp(const Lookup& lookup, Lease lease) {
  const View& table = lookup.table;
  const View& x = lookup.x;
  const bool is_exact = table.stored == x.rounded;
  for (const TableRow& entry : lookup.entries) {
    const std::byte* const row =
        ElementAt(table.stored, table.data, (entry.row - lookup.first_row) * table.stride);
    float* const to = RowOf(x, entry.position);
    if (lookup.into == Into::kOverwrite) {
      ToFloats(table.stored, row, x.columns, to);
      if (!is_exact && x.rounded != DType::kF32) RoundTo(x.rounded, to, x.columns);
      continue;
    }
    const auto* values = reinterpret_cast<const float*>(row);
    if (table.stored != DType::kF32) {
      ToFloats(table.stored, row, x.columns, weight_tile_);
      values = weight_tile_;
    }
    AddToFloats(values, x.columns, to);
    if (x.rounded != DType::kF32) RoundTo(x.rounded, to, x.columns);
  }
  lease.Release();
}

void HostCompute::LookUpGradient(const LookupGradient& lookup, Lease lease) {
  const View& tile = lookup.into.tile;
  const std::span<const TableRow> entries = lookup.entries;
  const int64_t width = lookup.dx.columns;
  if (lookup.into.into == Into::kOverwrite) {
    std::memset(tile.data, 0, static_cast<size_t>(tile.elements()) * ElementBytes(tile.stored));
  }
  for (size_t begin = 0, end = 0; begin < entries.size(); begin = end) {
    const float* sum = RowOf(lookup.dx, entries[begin].position);
    for (end = begin + 1; end < entries.size() && entries[end].row == entries[begin].row; ++end) {
      if (sum != Floats(lookup.work)) {
        std::copy_n(sum, width, Floats(lookup.work));
        sum = Floats(lookup.work);
      }
      AddToFloats(RowOf(lookup.dx, entries[end].position), width, Floats(lookup.work));
    }
    AddTo(tile.stored, sum, width,
          ElementAt(tile.stored, tile.data, (entries[begin].row - lookup.first_row) * tile.stride));
  }
  Accumulate(nullptr, lookup.into);
  lease.Release();
}

// --- Layers ---

void HostCompute::Norm(const NormArguments& norm, const View& y) {
  const int64_t width = norm.x.columns;
  pool_->ParallelRanges(norm.x.rows, 1, [&](int64_t begin, int64_t end) {
    const float* const x = RowOf(norm.x, begin);
    float* const deviations = RowOf(norm.stats, 0) + begin;
    if (norm.kind == NormKind::kRms) {
      RmsNormForward(x, Floats(norm.scale), norm.epsilon, end - begin, width, RowOf(y, begin),
                     deviations);
    } else {
      LayerNormForward(x, Floats(norm.scale), Floats(norm.shift), norm.epsilon, end - begin, width,
                       RowOf(y, begin), deviations, RowOf(norm.stats, 1) + begin);
    }
  });
  Round(y);
}

void HostCompute::NormGradient(const NormGradientArguments& gradient) {
  const NormArguments& norm = gradient.norm;
  const bool has_shift = norm.kind == NormKind::kLayer;
  const int64_t rows = norm.x.rows, width = norm.x.columns;
  const int64_t blocks = NumBlocks(rows, kNormBlock);
  float* const shares_of_scale = reinterpret_cast<float*>(gradient.work);
  float* const shares_of_shift = shares_of_scale + blocks * width;
  pool_->ParallelRanges(blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t first = block * kNormBlock, count = std::min(kNormBlock, rows - first);
      const float* const dy = RowOf(gradient.dy, first);
      const float* const x = RowOf(norm.x, first);
      const float* const deviations = RowOf(norm.stats, 0) + first;
      float* const dx = RowOf(gradient.dx, first);
      float* const of_scale = shares_of_scale + block * width;
      std::fill_n(of_scale, width, 0.0f);
      if (!has_shift) {
        RmsNormBackward(dy, x, Floats(norm.scale), deviations, count, width, dx, of_scale);
        continue;
      }
      float* const of_shift = shares_of_shift + block * width;
      std::fill_n(of_shift, width, 0.0f);
      LayerNormBackward(dy, x, Floats(norm.scale), deviations, RowOf(norm.stats, 1) + first, count,
                        width, dx, of_scale, of_shift);
    }
  });
  const auto add_up = [&](const float* shares, float* out) {
    std::fill_n(out, width, 0.0f);
    for (int64_t block = 0; block < blocks; ++block)
      AddToFloats(shares + block * width, width, out);
  };
  add_up(shares_of_scale, Floats(gradient.scale_gradient));
  if (has_shift) add_up(shares_of_shift, Floats(gradient.shift_gradient));
}

void HostCompute::FillRope(std::span<const float> frequencies, const View& cosines,
                           const View& sines) {
  FillRopeTables(frequencies, cosines.rows, Floats(cosines), Floats(sines));
}

void HostCompute::Rope(const RopeArguments& rope) {
  const RopeTables tables = {Floats(rope.cosines), Floats(rope.sines)};
  const View& rows = rope.x.rows;
  pool_->ParallelRanges(rows.rows, 1, [&](int64_t begin, int64_t end) {
    (rope.backward ? RopeBackward : RopeForward)(tables, rope.length, rope.x.heads, rope.head_dim,
                                                 begin, end, RowsOf<float>(rope.x));
  });
  Round(rows);
}

void HostCompute::Attention(const AttentionArguments& attention) {
  AttentionForward(pool_, ShapeOf(attention.sizes), InputsOf(attention),
                   reinterpret_cast<float*>(attention.work), Floats(attention.out));
  Round(attention.out);
}

void HostCompute::AttentionGradient(const AttentionGradientArguments& attention) {
  AttentionBackward(pool_, ShapeOf(attention.forward.sizes), InputsOf(attention.forward),
                    Floats(attention.forward.out), Floats(attention.out_gradient),
                    reinterpret_cast<float*>(attention.forward.work),
                    {.q = RowsOf<float>(attention.query_gradient),
                     .k = RowsOf<float>(attention.key_gradient),
                     .v = RowsOf<float>(attention.value_gradient)});
}

void HostCompute::Activation(const ActivationArguments& activation) {
  const auto [function, gate, up, out] = activation;
  pool_->ParallelRanges(out.elements(), kActivationGrain, [&](int64_t begin, int64_t end) {
    if (function == Activate::kGeluTanh) {
      GeluForward(Floats(up) + begin, end - begin, Floats(out) + begin);
    } else {
      SwigluForward(Floats(gate) + begin, Floats(up) + begin, end - begin, Floats(out) + begin);
    }
  });
  Round(out);
}

void HostCompute::ActivationGradient(const ActivationArguments& activation) {
  const auto [function, gate, up, out] = activation;
  pool_->ParallelRanges(out.elements(), kActivationGrain, [&](int64_t begin, int64_t end) {
    if (function == Activate::kGeluTanh) {
      GeluBackward(end - begin, Floats(up) + begin, Floats(out) + begin);
    } else {
      SwigluBackward(end - begin, Floats(gate) + begin, Floats(up) + begin, Floats(out) + begin);
    }
  });
  Round(out);
}

// --- Loss ---

void HostCompute::StartSoftmax(std::byte* states, int64_t tokens) {
  std::uninitialized_fill_n(States(states), tokens, OnlineSoftmax());
}

void HostCompute::GatherSoftmax(const VocabularyTile& tile) {
  const int64_t columns = tile.logits.columns;
  pool_->ParallelRanges(tile.logits.rows, 1, [&](int64_t begin, int64_t end) {
    trainer::GatherSoftmax(RowOf(tile.logits, begin), end - begin, tile.first_token, columns,
                           tile.targets.data() + begin, States(tile.states) + begin);
  });
}

void HostCompute::AddLoss(const std::byte* states, int64_t tokens) {
  double sum = 0;
  for (int64_t t = 0; t < tokens; ++t) sum += States(states)[t].Loss();
  loss_ += sum / static_cast<double>(tokens);
}

void HostCompute::CrossEntropyGradient(const VocabularyTile& tile, float scale, const View& out,
                                       Lease lease) {
  const int64_t columns = tile.logits.columns;
  pool_->ParallelRanges(tile.logits.rows, 1, [&](int64_t begin, int64_t end) {
    CrossEntropyBackward(RowOf(tile.logits, begin), end - begin, tile.first_token, columns,
                         tile.targets.data() + begin, States(tile.states) + begin, scale,
                         RowOf(out, begin));
  });
  lease.Release();
}

void HostCompute::TakeLogits(const View& logits) {
  logits_.insert(logits_.end(), Floats(logits), Floats(logits) + logits.elements());
}

absl::StatusOr<StepResults> HostCompute::Collect() {
  StepResults results = {
      .loss = std::exchange(loss_, 0.0), .sum_of_squares = 0, .logits = std::exchange(logits_, {})};
  for (const double sum : sums_) results.sum_of_squares += sum;
  return results;
}

}  // namespace spillway::trainer
