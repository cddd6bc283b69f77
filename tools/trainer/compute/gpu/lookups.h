// SPDX-License-Identifier: Apache-2.0
//
// Rows of a table that tokens look up, and the gradient of the table. A block takes an entry.

#ifndef SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_LOOKUPS_H_
#define SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_LOOKUPS_H_

#include <cstdint>

#include "src/simt/block.h"
#include "src/simt/device_code.h"
#include "tools/trainer/compute/gpu/matrix.h"
#include "tools/trainer/compute/into.h"
#include "tools/trainer/compute/table_row.h"

namespace spillway::trainer::gpu {

// x[position] = table[row], or added to it, for each entry. No two entries have one position.
struct Lookup {
  static constexpr int kThreads = 256;
  template <class Block>
  using Shared = simt::NoShared;

  Matrix table;  // rows [first_row, first_row + rows) of the table
  int64_t first_row;
  const TableRow* entries;
  int64_t num_entries;
  Into into;
  Matrix x;  // [tokens, width]

  int64_t blocks() const { return num_entries; }

  template <class Block>
  SPILLWAY_SIMT void Run(Block& block, simt::NoShared& /*shared*/) const {
    const TableRow entry = entries[block.index()];
    const int64_t row = entry.row - first_row;
    simt::ForElements<kThreads>(block, 0, x.columns, [&](int64_t i) {
      const float value = table.Get(row, i);
      x.Set(entry.position, i, into == Into::kAdd ? x.Get(entry.position, i) + value : value);
    });
  }
};

// Adds Σ dx[position] to the gradient of a table's row, over the row's entries. Entries are sorted
// by row, then position; the sum is in this order, in fp32, and added to the tile with one
// rounding. Rows without an entry stay as they are.
struct LookupGradient {
  static constexpr int kThreads = 256;
  template <class Block>
  using Shared = simt::NoShared;

  Matrix dx;  // [tokens, width]
  const TableRow* entries;
  int64_t num_entries;
  int64_t first_row;
  Matrix tile;  // rows [first_row, first_row + rows) of the gradient

  int64_t blocks() const { return num_entries; }

  // The block of a row's first entry takes all entries of the row.
  template <class Block>
  SPILLWAY_SIMT void Run(Block& block, simt::NoShared& /*shared*/) const {
    const int64_t first = block.index();
    const int32_t row = entries[first].row;
    if (first > 0 && entries[first - 1].row == row) return;
    simt::ForElements<kThreads>(block, 0, dx.columns, [&](int64_t i) {
      float sum = dx.Get(entries[first].position, i);
      for (int64_t entry = first + 1; entry < num_entries && entries[entry].row == row; ++entry)
        sum += dx.Get(entries[entry].position, i);
      tile.Set(row - first_row, i, tile.Get(row - first_row, i) + sum);
    });
  }
};

}  // namespace spillway::trainer::gpu

#endif  // SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_LOOKUPS_H_
