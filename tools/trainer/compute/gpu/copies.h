// SPDX-License-Identifier: Apache-2.0
//
// Copies with conversion, zeros, and additions. Each value is computed in fp32 and rounded once.

#ifndef SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_COPIES_H_
#define SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_COPIES_H_

#include <cstdint>

#include "src/simt/block.h"
#include "src/simt/device_code.h"
#include "tools/trainer/compute/gpu/elementwise_kernel.h"
#include "tools/trainer/compute/gpu/matrix.h"

namespace spillway::trainer::gpu {

// Both are contiguous.
struct CopyElements {
  Matrix from, to;

  SPILLWAY_SIMT int64_t elements() const { return to.elements(); }
  SPILLWAY_SIMT void Apply(int64_t i) const { to.Set(i, from.Get(i)); }
};
using Copy = Elementwise<CopyElements>;

struct ZeroElements {
  Matrix to;  // contiguous

  SPILLWAY_SIMT int64_t elements() const { return to.elements(); }
  SPILLWAY_SIMT void Apply(int64_t i) const { to.Set(i, 0.0f); }
};
using Zero = Elementwise<ZeroElements>;

// to += from. Both are contiguous. With this a gradient in scratch is also added to its tile.
struct AddElements {
  Matrix from, to;

  SPILLWAY_SIMT int64_t elements() const { return to.elements(); }
  SPILLWAY_SIMT void Apply(int64_t i) const { to.Set(i, to.Get(i) + from.Get(i)); }
};
using Add = Elementwise<AddElements>;

// y[rows, columns] += bias[1, columns].
struct AddBias {
  static constexpr int kThreads = 256;
  template <class Block>
  using Shared = simt::NoShared;

  Matrix bias, y;

  int64_t blocks() const { return y.rows; }

  template <class Block>
  SPILLWAY_SIMT void Run(Block& block, simt::NoShared& /*shared*/) const {
    const int64_t row = block.index();
    simt::ForElements<kThreads>(block, 0, y.columns, [&](int64_t column) {
      y.Set(row, column, y.Get(row, column) + bias.Get(column));
    });
  }
};

}  // namespace spillway::trainer::gpu

#endif  // SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_COPIES_H_
