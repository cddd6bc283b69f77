// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/embedding.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <tuple>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spillway/engine.h"
#include "src/base/status_macros.h"
#include "tools/trainer/kernels/convert.h"
#include "tools/trainer/parameters.h"

namespace spillway::trainer {

TokenOrder::TokenOrder(std::span<const int32_t> tokens, int64_t tile_rows,
                       std::optional<uint64_t> num_tiles)
    : entries_(tokens.size()) {
  for (size_t i = 0; i < tokens.size(); ++i) entries_[i] = {tokens[i], static_cast<int32_t>(i)};
  std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
    return std::tie(a.token, a.position) < std::tie(b.token, b.position);
  });
  const auto add_empty_up_to = [&](uint64_t end) {
    for (uint64_t tile = tiles_.empty() ? 0 : tiles_.back().index + 1; num_tiles && tile < end;
         ++tile)
      tiles_.push_back({tile, {}});
  };
  for (size_t begin = 0, end = 0; begin < entries_.size(); begin = end) {
    const auto tile = static_cast<uint64_t>(entries_[begin].token / tile_rows);
    while (end < entries_.size() && static_cast<uint64_t>(entries_[end].token / tile_rows) == tile)
      ++end;
    add_empty_up_to(tile);
    tiles_.push_back({tile, std::span(entries_).subspan(begin, end - begin)});
  }
  add_empty_up_to(num_tiles.value_or(0));
}

Embedding::Embedding(ModelContext* context) : context_(context) {
  const TensorSpec& spec = context->WeightSpec(kEmbeddingIndex);
  type_ = spec.dtype;
  tile_rows_ = spec.tile_rows > 0 ? spec.tile_rows : spec.shape[0];
  num_tiles_ = spec.num_tiles();
  width_ = spec.shape[1];
}

std::vector<Use> Embedding::LookupUses(const TokenOrder& order) const {
  std::vector<Use> uses;
  const TensorId weight = context_->parameters[kEmbeddingIndex].tensors.weight;
  for (const TokenOrder::Tile& tile : order.tiles()) {
    uses.push_back({{weight, tile.index}, Tier::kDevice, Access::kRead});
  }
  return uses;
}

void Embedding::CopyRows(const TokenOrder::Tile& tile, const Lease& lease, float* x) const {
  const int64_t first_token = static_cast<int64_t>(tile.index) * tile_rows_;
  const DType residual = ResidualType(context_->options.precision);
  for (const TokenOrder::Entry& entry : tile.entries) {
    const int64_t offset = (entry.token - first_token) * width_;
    float* const row = x + entry.position * width_;
    ToFloats(type_, ElementAt(type_, lease.data(), offset), width_, row);
    if (type_ != residual) RoundTo(residual, row, width_);
  }
}

absl::Status Embedding::Lookup(const TokenOrder& order, float* x) const {
  for (const TokenOrder::Tile& tile : order.tiles()) SPILLWAY_RETURN_IF_ERROR(LookupTile(tile, x));
  return absl::OkStatus();
}

absl::Status Embedding::LookupTile(const TokenOrder::Tile& tile, float* x) const {
  const TensorId weight = context_->parameters[kEmbeddingIndex].tensors.weight;
  SPILLWAY_ASSIGN_OR_RETURN(const Lease lease,
                            context_->engine->Acquire({weight, tile.index}, Access::kRead));
  CopyRows(tile, lease, x);
  return absl::OkStatus();
}

// Adds once to the row of each distinct token. The gradient at the token's first position
// accumulates those at its other positions.
void Embedding::AddRows(const TokenOrder::Tile& tile, float* gradient, DType type,
                        std::byte* stored) const {
  const int64_t first_token = static_cast<int64_t>(tile.index) * tile_rows_;
  const std::span<const TokenOrder::Entry> entries = tile.entries;
  for (size_t begin = 0, end = 0; begin < entries.size(); begin = end) {
    float* const sum = gradient + entries[begin].position * width_;
    for (end = begin + 1; end < entries.size() && entries[end].token == entries[begin].token;
         ++end) {
      AddToFloats(gradient + entries[end].position * width_, width_, sum);
    }
    const int64_t offset = (entries[begin].token - first_token) * width_;
    AddTo(type, sum, width_, ElementAt(type, stored, offset));
  }
}

absl::Status Embedding::BackwardTile(const TokenOrder::Tile& tile, float* gradient) const {
  const auto use = context_->config.tie_word_embeddings ? Gradients::UseOfParameter::kLater
                                                        : Gradients::UseOfParameter::kFirst;
  return context_->gradients->Update(
      kEmbeddingIndex, tile.index, use,
      [&](DType type, std::byte* stored) { AddRows(tile, gradient, type, stored); });
}

}  // namespace spillway::trainer
