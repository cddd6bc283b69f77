// SPDX-License-Identifier: Apache-2.0
//
// The rows of an embedding table that the tokens of a batch use, in the order in which the table's
// tiles are leased.

#ifndef SPILLWAY_TOOLS_TRAINER_TABLE_ORDER_H_
#define SPILLWAY_TOOLS_TRAINER_TABLE_ORDER_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "tools/trainer/compute/compute.h"

namespace spillway::trainer {

// A batch's rows, sorted by tile of the table, then row, then position.
class TableOrder {
 public:
  TableOrder() = default;
  // rows[i] is the row of position i. `num_tiles`: the number of tiles of the table, to list them
  // all; nullopt to list only tiles that hold a row of the batch.
  TableOrder(std::span<const int32_t> rows, int64_t tile_rows, std::optional<uint64_t> num_tiles);
  TableOrder(TableOrder&&) = default;
  TableOrder& operator=(TableOrder&&) = default;

  struct Tile {
    uint64_t index;
    std::span<const TableRow> entries;
  };
  // In ascending order. A tile that holds no row of the batch has no entries.
  const std::vector<Tile>& tiles() const { return tiles_; }

 private:
  std::vector<TableRow> entries_;
  std::vector<Tile> tiles_;
};

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_TABLE_ORDER_H_
