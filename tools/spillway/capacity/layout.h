// SPDX-License-Identifier: Apache-2.0
//
// The pages of a model's tensors, as the engine divides them: a tensor into tiles, a tile into
// pages of the store. Pure arithmetic; the trial lays them out.

#ifndef SPILLWAY_TOOLS_SPILLWAY_CAPACITY_LAYOUT_H_
#define SPILLWAY_TOOLS_SPILLWAY_CAPACITY_LAYOUT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "spillway/types.h"

namespace spillway::capacity {

// A page of the layout.
struct LaidPage {
  uint32_t tensor = 0;  // index of the tensor in the layout
  uint64_t page = 0;
  uint32_t bytes = 0;
};

struct LayoutTotals {
  uint64_t tensors = 0;
  uint64_t pages = 0;
  uint64_t bytes = 0;
};

class Layout {
 public:
  Layout(std::vector<TensorSpec> specs, uint64_t page_bytes)
      : specs_(std::move(specs)), page_bytes_(page_bytes) {}

  const std::vector<TensorSpec>& specs() const { return specs_; }
  uint64_t page_bytes() const { return page_bytes_; }
  // Pages that the tensor's numbers span: each of its tiles takes as many numbers as the first.
  uint64_t NumPages(const TensorSpec& spec) const { return spec.num_tiles() * PagesPerTile(spec); }
  // Of the tensors that commits hold, or of the transient ones.
  LayoutTotals Totals(bool transient) const;

  // Calls `take(LaidPage)` for each page of a tensor, in order, until it returns false. Returns
  // whether it never did.
  template <typename Take>
  bool ForEachPage(uint32_t tensor, const Take& take) const {
    const TensorSpec& spec = specs_[tensor];
    const uint64_t per_tile = PagesPerTile(spec);
    const uint64_t num_tiles = spec.num_tiles();
    for (uint64_t tile = 0; tile < num_tiles; ++tile) {
      const uint64_t tile_bytes = spec.tile_bytes(tile);
      uint64_t page = tile * per_tile;
      for (uint64_t at = 0; at < tile_bytes; at += page_bytes_, ++page) {
        const auto bytes = static_cast<uint32_t>(std::min(page_bytes_, tile_bytes - at));
        if (!take(LaidPage{tensor, page, bytes})) return false;
      }
    }
    return true;
  }

 private:
  uint64_t PagesOf(uint64_t bytes) const { return (bytes + page_bytes_ - 1) / page_bytes_; }
  uint64_t PagesPerTile(const TensorSpec& spec) const { return PagesOf(spec.tile_bytes(0)); }

  const std::vector<TensorSpec> specs_;
  const uint64_t page_bytes_;
};

}  // namespace spillway::capacity

#endif  // SPILLWAY_TOOLS_SPILLWAY_CAPACITY_LAYOUT_H_
