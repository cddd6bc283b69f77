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
#include "tools/hf/status_macros.h"
#include "tools/trainer/kernels/convert.h"

namespace spillway::trainer {
namespace {

// Elements of a block whose squares are summed on their own.
constexpr int64_t kBlock = 4096;

int64_t NumBlocks(int64_t elements) { return (elements + kBlock - 1) / kBlock; }

}  // namespace

Gradients::Gradients(TileAccess* tiles, ThreadPool* pool, std::span<const Parameter> parameters,
                     int64_t micro_batches)
    : tiles_(tiles),
      pool_(pool),
      parameters_(parameters),
      micro_batches_(micro_batches),
      sums_(parameters.size()) {
  for (size_t p = 0; p < parameters.size(); ++p) {
    if (!HasGradient(p)) continue;
    const TensorSpec& spec = tiles->engine()->Spec(parameters[p].tensors.gradient);
    dtype_ = spec.dtype;
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
  const bool in_place = replace && dtype_ == DType::kF32;
  if (!in_place) compute(tile_scratch_);
  SPILLWAY_HF_ASSIGN_OR_RETURN(Lease lease,
                               tiles_->Acquire({parameters_[parameter].tensors.gradient, tile},
                                               replace ? Access::kDiscard : Access::kReadWrite));
  if (in_place) compute(lease.as<float>().data());
  const int64_t elements = static_cast<int64_t>(lease.size_bytes() / ElementBytes(dtype_));
  Accumulate(lease.data(), elements, in_place ? nullptr : tile_scratch_, replace,
             &sums_[parameter][tile]);
  return absl::OkStatus();
}

absl::Status Gradients::Update(size_t parameter, uint64_t tile, UseOfParameter use,
                               const std::function<void(std::byte*)>& update) {
  if (!HasGradient(parameter)) return absl::OkStatus();
  const bool replace = first_ && use == UseOfParameter::kFirst;
  SPILLWAY_HF_ASSIGN_OR_RETURN(Lease lease,
                               tiles_->Acquire({parameters_[parameter].tensors.gradient, tile},
                                               replace ? Access::kDiscard : Access::kReadWrite));
  if (replace) std::memset(lease.data(), 0, lease.size_bytes());
  update(lease.data());
  const int64_t elements = static_cast<int64_t>(lease.size_bytes() / ElementBytes(dtype_));
  Accumulate(lease.data(), elements, nullptr, false, &sums_[parameter][tile]);
  return absl::OkStatus();
}

void Gradients::Accumulate(std::byte* stored, int64_t elements, const float* from, bool replace,
                           double* sum_of_squares) {
  if (from == nullptr && !last_) return;
  auto* const floats = reinterpret_cast<float*>(stored);
  auto* const halves = reinterpret_cast<uint16_t*>(stored);
  const bool half = dtype_ == DType::kF16;
  const int64_t blocks = NumBlocks(elements);
  pool_->ParallelRanges(blocks, 1, [&](int64_t begin, int64_t end) {
    for (int64_t block = begin; block < end; ++block) {
      const int64_t at = block * kBlock;
      const int64_t n = std::min(kBlock, elements - at);
      if (from != nullptr) {
        if (half) {
          replace ? FloatsToHalves(from + at, n, halves + at)
                  : AddToHalves(from + at, n, halves + at);
        } else if (replace) {
          std::memcpy(floats + at, from + at, static_cast<size_t>(n) * sizeof(float));
        } else {
          AddToFloats(from + at, n, floats + at);
        }
      }
      if (last_)
        block_sums_[block] = half ? SumOfSquares(halves + at, n) : SumOfSquares(floats + at, n);
    }
  });
  if (!last_) return;
  double total = 0;
  for (int64_t block = 0; block < blocks; ++block) total += block_sums_[block];
  *sum_of_squares = total;
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
