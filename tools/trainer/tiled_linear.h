// SPDX-License-Identifier: Apache-2.0
//
// y = x·Wᵀ for a weight W [outputs, inputs] that is leased a tile of rows at a time. Each tile
// computes its own columns of y, adds its share to the input's gradient and owns its rows of the
// weight's gradient.

#ifndef SPILLWAY_TOOLS_TRAINER_TILED_LINEAR_H_
#define SPILLWAY_TOOLS_TRAINER_TILED_LINEAR_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "tools/trainer/context.h"
#include "tools/trainer/kernels/gemm.h"

namespace spillway::trainer {

// Thread-compatible; the context must outlive it. x is [tokens, inputs] and y [tokens, outputs] in
// fp32, unless a stride (elements from row to row) says otherwise.
class TiledLinear {
 public:
  TiledLinear(ModelContext* context, size_t parameter);

  int64_t inputs() const { return inputs_; }
  int64_t outputs() const { return outputs_; }

  absl::Status Forward(const float* x, int64_t tokens, Into into, float* y) const;
  // Computes dx = dy·W, or adds dy·W to dx.
  absl::Status BackwardInput(const float* dy, int64_t tokens, Into into, float* dx) const;
  // Adds dyᵀ·x to the weight's gradient.
  absl::Status BackwardWeight(const float* dy, const float* x, int64_t tokens) const;

  // The same for one tile, for callers that choose the order of a large W's tiles. y and dy point
  // at the tile's first column.
  uint64_t num_tiles() const { return num_tiles_; }
  int64_t first_output(uint64_t tile) const { return static_cast<int64_t>(tile) * tile_rows_; }
  int64_t tile_outputs(uint64_t tile) const;
  int64_t max_tile_outputs() const { return tile_rows_; }
  absl::Status ForwardTile(uint64_t tile, const float* x, int64_t tokens, Into into, float* y,
                           int64_t y_stride) const;
  absl::Status BackwardInputTile(uint64_t tile, const float* dy, int64_t dy_stride, int64_t tokens,
                                 Into into, float* dx) const;
  absl::Status BackwardWeightTile(uint64_t tile, const float* dy, int64_t dy_stride, const float* x,
                                  int64_t tokens) const;

 private:
  ModelContext* context_;
  size_t parameter_;
  int64_t outputs_;
  int64_t inputs_;
  int64_t tile_rows_;
  uint64_t num_tiles_;
};

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_TILED_LINEAR_H_
