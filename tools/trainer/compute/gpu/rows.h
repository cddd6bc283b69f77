// SPDX-License-Identifier: Apache-2.0
//
// Copies and zeros of matrices whose rows do not follow each other in memory: parts of columns, and
// heads. A block takes a row.

#ifndef SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_ROWS_H_
#define SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_ROWS_H_

#include <cstdint>

#include "src/simt/block.h"
#include "src/simt/device_code.h"
#include "tools/trainer/compute/gpu/matrix.h"

namespace spillway::trainer::gpu {

// to[rows, columns] = from, rounded once to the type of `to`.
struct CopyRows {
  static constexpr int kThreads = 256;
  template <class Block>
  using Shared = simt::NoShared;

  Matrix from, to;

  int64_t blocks() const { return to.rows; }

  template <class Block>
  SPILLWAY_SIMT void Run(Block& block, simt::NoShared& /*shared*/) const {
    const int64_t row = block.index();
    simt::ForElements<kThreads>(block, 0, to.columns,
                                [&](int64_t i) { to.Set(row, i, from.Get(row, i)); });
  }
};

// Makes the heads of each row zero, and leaves what lies between them.
struct ZeroHeads {
  static constexpr int kThreads = 128;
  template <class Block>
  using Shared = simt::NoShared;

  Matrix rows;  // from the first head's first column on
  int64_t heads;
  int64_t head_dim;
  int64_t head_stride;  // columns from head to head

  int64_t blocks() const { return rows.rows; }

  template <class Block>
  SPILLWAY_SIMT void Run(Block& block, simt::NoShared& /*shared*/) const {
    const int64_t row = block.index();
    simt::ForElements<kThreads>(block, 0, heads * head_dim, [&](int64_t i) {
      rows.Set(row, i / head_dim * head_stride + i % head_dim, 0.0f);
    });
  }
};

}  // namespace spillway::trainer::gpu

#endif  // SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_ROWS_H_
