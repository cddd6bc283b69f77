// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/gradients.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>

#include "absl/status/status.h"
#include "spillway/engine.h"
#include "src/base/status_macros.h"
#include "tools/trainer/kernels/convert.h"

namespace spillway::trainer {
namespace {

// Elements of a block. The squares of each block are summed separately.
constexpr int64_t kBlock = 4096;

int64_t NumBlocks(int64_t elements) { return (elements + kBlock - 1) / kBlock; }

}  // namespace

Gradients::Gradients(Engine* engine, ThreadPool* pool, std::span<const Parameter> parameters,
                     int64_t micro_batches)
    : engine_(engine),
      pool_(pool),
      parameters_(parameters),
      micro_batches_(micro_batches),
      types_(parameters.size(), DType::kF32),
      sums_(parameters.size()) {
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (!HasGradient(p)) continue;
    const TensorSpec& spec = engine->Spec(parameters[p].tensors.gradient);
    types_[p] = spec.dtype;
    sums_[p].assign(spec.num_tiles(), 0.0);
    largest_tile_ = std::max(largest_tile_,
                             static_cast<int64_t>(spec.tile_bytes(0) / ElementBytes(spec.dtype)));
  }
}

void Gradients::Bind(ScratchLayout& layout) {
  tile_scratch_ = layout.Take<float>(largest_tile_);
  block_sums_ = layout.Take<double>(NumBlocks(largest_tile_));
}

void Gradients::BeginMicroBatch(int64_t index) {
  first_ = index == 0;
  last_ = index + 1 == micro_batches_;
}

absl::Status Gradients::Add(size_t parameter, uint64_t tile, UseOfParameter use,
                            const std::function<void(float*)>& compute) {
  if (!HasGradient(parameter)) return absl::OkStatus();
  const bool replace = first_ && use == UseOfParameter::kFirst;
  const bool in_place = replace && types_[parameter] == DType::kF32;
  if (!in_place) compute(tile_scratch_);
  SPILLWAY_ASSIGN_OR_RETURN(Lease lease,
                            engine_->Acquire({parameters_[parameter].tensors.gradient, tile},
                                             replace ? Access::kDiscard : Access::kReadWrite));
  if (in_place) compute(lease.as<float>().data());
  Accumulate(parameter, tile, lease, in_place ? nullptr : tile_scratch_, replace);
  return absl::OkStatus();
}

absl::Status Gradients::Update(size_t parameter, uint64_t tile, UseOfParameter use,
                               const std::function<void(DType, std::byte*)>& update) {
  if (!HasGradient(parameter)) return absl::OkStatus();
  const bool replace = first_ && use == UseOfParameter::kFirst;
  SPILLWAY_ASSIGN_OR_RETURN(Lease lease,
                            engine_->Acquire({parameters_[parameter].tensors.gradient, tile},
                                             replace ? Access::kDiscard : Access::kReadWrite));
  if (replace) std::memset(lease.data(), 0, lease.size_bytes());
  update(types_[parameter], lease.data());
  Accumulate(parameter, tile, lease, nullptr, false);
  return absl::OkStatus();
}

void Gradients::Accumulate(size_t parameter, uint64_t tile, const Lease& lease, const float* from,
                           bool replace) {
  if (from == nullptr && !last_) return;
  const DType type = types_[parameter];
  const auto elements = static_cast<int64_t>(lease.size_bytes() / ElementBytes(type));
  const int64_t blocks = NumBlocks(elements);
  pool_->ParallelRanges(blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t at = block * kBlock;
      const int64_t n = std::min(kBlock, elements - at);
      std::byte* const stored = ElementAt(type, lease.data(), at);
      if (from != nullptr) {
        replace ? FromFloats(type, from + at, n, stored) : AddTo(type, from + at, n, stored);
      }
      if (last_) block_sums_[block] = SumOfSquares(type, stored, n);
    }
  });
  if (!last_) return;
  double total = 0;
  for (int64_t block = 0; block < blocks; ++block) total += block_sums_[block];
  sums_[parameter][tile] = total;
}

GradientSummary Gradients::Summary() const {
  GradientSummary summary;
  for (const std::vector<double>& tiles : sums_) {
    for (double sum : tiles) summary.sum_of_squares += sum;
  }
  summary.finite = std::isfinite(summary.sum_of_squares);
  return summary;
}

}  // namespace spillway::trainer
