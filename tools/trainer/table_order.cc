// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/table_order.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <tuple>

namespace spillway::trainer {

TableOrder::TableOrder(std::span<const int32_t> rows, int64_t tile_rows,
                       std::optional<uint64_t> num_tiles)
    : entries_(rows.size()) {
  for (size_t i = 0; i < rows.size(); ++i) entries_[i] = {rows[i], static_cast<int32_t>(i)};
  std::sort(entries_.begin(), entries_.end(), [](const TableRow& a, const TableRow& b) {
    return std::tie(a.row, a.position) < std::tie(b.row, b.position);
  });
  const auto add_empty_up_to = [&](uint64_t end) {
    for (uint64_t tile = tiles_.empty() ? 0 : tiles_.back().index + 1; num_tiles && tile < end;
         ++tile)
      tiles_.push_back({tile, {}});
  };
  for (size_t begin = 0, end = 0; begin < entries_.size(); begin = end) {
    const auto tile = static_cast<uint64_t>(entries_[begin].row / tile_rows);
    while (end < entries_.size() && static_cast<uint64_t>(entries_[end].row / tile_rows) == tile)
      ++end;
    add_empty_up_to(tile);
    tiles_.push_back({tile, std::span(entries_).subspan(begin, end - begin)});
  }
  add_empty_up_to(num_tiles.value_or(0));
}

}  // namespace spillway::trainer
