// SPDX-License-Identifier: Apache-2.0
//
// The parts of a walk that take leases: products by tiles of a weight, gradients by tiles, vectors,
// saved activations and rows of embeddings.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "src/base/status_macros.h"
#include "tools/trainer/walk.h"

namespace spillway::trainer {
namespace {

// The first row of a tile, and the number of its rows. A vector is one row.
struct TileRange {
  int64_t first = 0;
  int64_t count = 0;
};

TileRange RangeOf(const TensorSpec& spec, uint64_t tile) {
  if (spec.shape.size() < 2) return {0, 1};
  const int64_t rows = spec.tile_rows > 0 ? spec.tile_rows : spec.shape[0];
  const int64_t first = static_cast<int64_t>(tile) * rows;
  return {first, std::min(rows, spec.shape[0] - first)};
}

View ViewOf(const TensorSpec& spec, uint64_t tile, const Lease& lease) {
  const int64_t columns = spec.shape.back();
  return {.data = lease.size_bytes() > 0 ? lease.data() : nullptr,  // null in a dry run
          .stored = spec.dtype,
          .rounded = spec.dtype,
          .rows = RangeOf(spec, tile).count,
          .columns = columns,
          .stride = columns};
}

}  // namespace

absl::StatusOr<std::pair<Lease, View>> Walk::AcquireTile(TensorId tensor, uint64_t tile,
                                                         Access access) {
  SPILLWAY_ASSIGN_OR_RETURN(Lease lease,
                            parts_.engine->Acquire({tensor, tile}, access, compute_.stream()));
  const View view = ViewOf(parts_.engine->Spec(tensor), tile, lease);
  return std::pair(std::move(lease), view);
}

// Leases a gradient's tile. The first use of a parameter in a step overwrites it, and with the last
// one the gradient is final.
absl::StatusOr<std::pair<Lease, GradientTile>> Walk::AcquireGradient(size_t parameter,
                                                                     uint64_t tile,
                                                                     const GradientUse& use) {
  const bool overwrites = use.micro_batch == 0 && use.is_first;
  const bool is_final = use.micro_batch + 1 == options_.accumulate && use.is_last;
  SPILLWAY_ASSIGN_OR_RETURN(auto leased,
                            AcquireTile(parts_.parameters[parameter].tensors.gradient, tile,
                                        overwrites ? Access::kDiscard : Access::kReadWrite));
  const GradientTile gradient = {
      .tile = leased.second,
      .into = overwrites ? Into::kOverwrite : Into::kAdd,
      .sum = is_final ? first_sum_[parameter] + tile : GradientTile::kNoSum};
  return std::pair(std::move(leased.first), gradient);
}

// --- Linears ---

// A tile holds rows of the stored matrix. Either each tile gives its own columns of the result, or
// each takes its own columns of the operand and all add to the whole result.
absl::Status Walk::Multiply(const Linear& linear, Passes pass, const View& a, Into into,
                            const View& c) {
  const TensorSpec& spec = WeightSpec(linear.weight);
  const bool owns_columns =
      (linear.storage == Storage::kOutputsByInputs) == (pass == Passes::kForward);
  const bool adds_bias = pass == Passes::kForward && linear.bias != kNone;
  const uint64_t last = spec.num_tiles() - 1;
  // A result is rounded when it is whole. Until then it is summed in fp32, elsewhere if it is
  // stored in 16 bits.
  const bool is_sum = adds_bias || (!owns_columns && last > 0);
  const bool is_elsewhere = is_sum && c.stored != DType::kF32;
  const View sum = is_elsewhere ? sum_.Reshaped(c.rows, c.columns) : c;
  if (is_elsewhere && into == Into::kAdd) compute_.Copy(c, sum);
  for (uint64_t tile = 0; tile <= last; ++tile) {
    const auto [first, count] = RangeOf(spec, tile);
    const bool is_whole = !adds_bias && (owns_columns || tile == last);
    const View result = is_whole ? sum : sum.Rounded(sum.stored);
    SPILLWAY_RETURN_IF_ERROR(
        owns_columns ? MultiplyTile(linear, tile, pass, a, into, result.Columns(first, count))
                     : MultiplyTile(linear, tile, pass, a.Columns(first, count),
                                    tile == 0 ? into : Into::kAdd, result));
  }
  if (adds_bias) {
    const View bias = vector_.Columns(0, linear.outputs);
    SPILLWAY_RETURN_IF_ERROR(FetchVector(linear.bias, bias));
    compute_.AddBias(bias, sum);
  }
  if (is_elsewhere) compute_.Copy(sum, c);
  return absl::OkStatus();
}

absl::Status Walk::MultiplyTile(const Linear& linear, uint64_t tile, Passes pass, const View& a,
                                Into into, const View& c) {
  const TensorId weight = parts_.parameters[linear.weight].tensors.weight;
  SPILLWAY_ASSIGN_OR_RETURN(auto leased, AcquireTile(weight, tile, Access::kRead));
  const bool transposed =
      (linear.storage == Storage::kOutputsByInputs) == (pass == Passes::kForward);
  compute_.Multiply({.a = a, .w = leased.second, .transposed = transposed, .into = into, .c = c},
                    std::move(leased.first));
  return absl::OkStatus();
}

// Adds dyᵀ·x, or xᵀ·dy, to the weight's gradient, and the sum of dy's rows to the bias's.
absl::Status Walk::AddWeightGradient(const Linear& linear, const View& dy, const View& x,
                                     const GradientUse& use) {
  const TensorSpec& spec = WeightSpec(linear.weight);
  for (uint64_t tile = 0; tile < spec.num_tiles(); ++tile) {
    const auto [first, count] = RangeOf(spec, tile);
    const bool has_outputs = linear.storage == Storage::kOutputsByInputs;
    SPILLWAY_RETURN_IF_ERROR(AddWeightGradientTile(linear, tile,
                                                   has_outputs ? dy.Columns(first, count) : dy,
                                                   has_outputs ? x : x.Columns(first, count), use));
  }
  if (linear.bias == kNone || !HasGradient(linear.bias)) return absl::OkStatus();
  const View sums = vector_.Columns(0, linear.outputs);
  compute_.BiasGradient(dy, sums);
  return AddVectorGradient(linear.bias, sums, use);
}

// dy and x are cut to what the tile needs.
absl::Status Walk::AddWeightGradientTile(const Linear& linear, uint64_t tile, const View& dy,
                                         const View& x, const GradientUse& use) {
  if (!HasGradient(linear.weight)) return absl::OkStatus();
  SPILLWAY_ASSIGN_OR_RETURN(auto leased, AcquireGradient(linear.weight, tile, use));
  const bool has_outputs = linear.storage == Storage::kOutputsByInputs;
  compute_.MultiplyGradient(
      {.a = has_outputs ? dy : x, .b = has_outputs ? x : dy, .into = leased.second},
      std::move(leased.first));
  return absl::OkStatus();
}

// --- Vectors and norms ---

absl::Status Walk::FetchVector(size_t parameter, const View& to) {
  const TensorId weight = parts_.parameters[parameter].tensors.weight;
  SPILLWAY_ASSIGN_OR_RETURN(auto leased, AcquireTile(weight, 0, Access::kRead));
  compute_.CopyFromTile(leased.second, std::move(leased.first), to);
  return absl::OkStatus();
}

absl::Status Walk::AddVectorGradient(size_t parameter, const View& from, const GradientUse& use) {
  if (!HasGradient(parameter)) return absl::OkStatus();
  SPILLWAY_ASSIGN_OR_RETURN(auto leased, AcquireGradient(parameter, 0, use));
  compute_.Accumulate(from, leased.second, std::move(leased.first));
  return absl::OkStatus();
}

// Fetches the norm's vectors. Their views are of scratch that all norms share.
absl::StatusOr<NormArguments> Walk::FetchNorm(const Norm& norm, const View& x) {
  NormArguments arguments = {.kind = norm.kind,
                             .epsilon = norm.epsilon,
                             .x = x,
                             .scale = vector_.Columns(0, norm.width),
                             .shift = {},
                             .stats = stats_.Columns(0, x.rows)};
  SPILLWAY_RETURN_IF_ERROR(FetchVector(norm.scale, arguments.scale));
  if (norm.shift != kNone) {
    arguments.shift = second_vector_.Columns(0, norm.width);
    SPILLWAY_RETURN_IF_ERROR(FetchVector(norm.shift, arguments.shift));
  }
  return arguments;
}

absl::Status Walk::ForwardNorm(const Norm& norm, const View& x, const View& y) {
  SPILLWAY_ASSIGN_OR_RETURN(const NormArguments arguments, FetchNorm(norm, x));
  compute_.Norm(arguments, y);
  return absl::OkStatus();
}

// Adds the gradient of x to dx. REQUIRES: the last ForwardNorm was on the same x.
absl::Status Walk::BackwardNorm(const Norm& norm, const View& dy, const View& x, const View& dx,
                                int64_t micro_batch) {
  SPILLWAY_ASSIGN_OR_RETURN(const NormArguments arguments, FetchNorm(norm, x));
  compute_.NormGradient({.norm = arguments,
                         .dy = dy,
                         .dx = dx,
                         .scale_gradient = arguments.scale,
                         .shift_gradient = arguments.shift,
                         .work = norm_work_});
  const GradientUse use = {.micro_batch = micro_batch};
  SPILLWAY_RETURN_IF_ERROR(AddVectorGradient(norm.scale, arguments.scale, use));
  if (norm.shift == kNone) return absl::OkStatus();
  return AddVectorGradient(norm.shift, arguments.shift, use);
}

// --- Saved activations ---

absl::Status Walk::Save(TensorId tensor, const View& from) {
  const TensorSpec& spec = parts_.engine->Spec(tensor);
  for (uint64_t tile = 0; tile < spec.num_tiles(); ++tile) {
    const auto [first, count] = RangeOf(spec, tile);
    SPILLWAY_ASSIGN_OR_RETURN(auto leased, AcquireTile(tensor, tile, Access::kDiscard));
    compute_.CopyToTile(from.Rows(first, count), leased.second, std::move(leased.first));
  }
  return absl::OkStatus();
}

absl::Status Walk::Load(TensorId tensor, After after, const View& to) {
  const TensorSpec& spec = parts_.engine->Spec(tensor);
  for (uint64_t tile = 0; tile < spec.num_tiles(); ++tile) {
    const auto [first, count] = RangeOf(spec, tile);
    SPILLWAY_ASSIGN_OR_RETURN(auto leased, AcquireTile(tensor, tile, Access::kRead));
    compute_.CopyFromTile(leased.second, std::move(leased.first), to.Rows(first, count));
    if (after == After::kForget) SPILLWAY_RETURN_IF_ERROR(parts_.engine->Discard({tensor, tile}));
  }
  return absl::OkStatus();
}

// Computes the gradient of a tile's logits, which are saved, or in `logits` itself.
absl::Status Walk::LogitsGradient(const Batch& batch, uint64_t tile, std::byte* states, float scale,
                                  const View& logits) {
  const auto [first_token, unused] = RangeOf(WeightSpec(model_.head.weight), tile);
  if (options_.checkpoint_activations) {
    compute_.CrossEntropyGradient(
        {.logits = logits, .first_token = first_token, .targets = batch.targets, .states = states},
        scale, logits, Lease());
    return absl::OkStatus();
  }
  const TensorId saved = parts_.saved->Of(batch.index).logits[tile];
  const TensorSpec& spec = parts_.engine->Spec(saved);
  for (uint64_t t = 0; t < spec.num_tiles(); ++t) {
    const auto [first, count] = RangeOf(spec, t);
    SPILLWAY_ASSIGN_OR_RETURN(auto leased, AcquireTile(saved, t, Access::kRead));
    const VocabularyTile of = {
        .logits = leased.second,
        .first_token = first_token,
        .targets = batch.targets.empty() ? batch.targets
                                         : batch.targets.subspan(static_cast<size_t>(first),
                                                                 static_cast<size_t>(count)),
        .states = states == nullptr ? nullptr : states + compute_.SoftmaxBytes(first)};
    compute_.CrossEntropyGradient(of, scale, logits.Rows(first, count), std::move(leased.first));
    SPILLWAY_RETURN_IF_ERROR(parts_.engine->Discard({saved, t}));
  }
  return absl::OkStatus();
}

// --- Embeddings ---

absl::Status Walk::LookUpTile(size_t parameter, const TableOrder::Tile& tile, Into into,
                              const View& x) {
  const TensorId weight = parts_.parameters[parameter].tensors.weight;
  SPILLWAY_ASSIGN_OR_RETURN(auto leased, AcquireTile(weight, tile.index, Access::kRead));
  compute_.LookUp({.table = leased.second,
                   .first_row = RangeOf(WeightSpec(parameter), tile.index).first,
                   .entries = tile.entries,
                   .into = into,
                   .x = x},
                  std::move(leased.first));
  return absl::OkStatus();
}

absl::Status Walk::LookUpGradientTile(size_t parameter, const TableOrder::Tile& tile,
                                      const View& dx, const View& work, const GradientUse& use) {
  SPILLWAY_ASSIGN_OR_RETURN(auto leased, AcquireGradient(parameter, tile.index, use));
  compute_.LookUpGradient({.dx = dx,
                           .entries = tile.entries,
                           .first_row = RangeOf(WeightSpec(parameter), tile.index).first,
                           .into = leased.second,
                           .work = work},
                          std::move(leased.first));
  return absl::OkStatus();
}

}  // namespace spillway::trainer
