// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/tiled_linear.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "src/base/status_macros.h"

namespace spillway::trainer {

TiledLinear::TiledLinear(ModelContext* context, size_t parameter)
    : context_(context), parameter_(parameter) {
  const TensorSpec& spec = context->WeightSpec(parameter);
  outputs_ = spec.shape[0];
  inputs_ = spec.shape[1];
  tile_rows_ = spec.tile_rows;
  num_tiles_ = spec.num_tiles();
}

int64_t TiledLinear::tile_outputs(uint64_t tile) const {
  return std::min(tile_rows_, outputs_ - first_output(tile));
}

absl::Status TiledLinear::Forward(const float* x, int64_t tokens, Into into, float* y) const {
  for (uint64_t tile = 0; tile < num_tiles_; ++tile) {
    SPILLWAY_RETURN_IF_ERROR(ForwardTile(tile, x, tokens, into, y + first_output(tile), outputs_));
  }
  return absl::OkStatus();
}

absl::Status TiledLinear::BackwardInput(const float* dy, int64_t tokens, Into into,
                                        float* dx) const {
  for (uint64_t tile = 0; tile < num_tiles_; ++tile) {
    SPILLWAY_RETURN_IF_ERROR(BackwardInputTile(tile, dy + first_output(tile), outputs_, tokens,
                                               tile == 0 ? into : Into::kAdd, dx));
  }
  return absl::OkStatus();
}

absl::Status TiledLinear::BackwardWeight(const float* dy, const float* x, int64_t tokens) const {
  for (uint64_t tile = 0; tile < num_tiles_; ++tile) {
    SPILLWAY_RETURN_IF_ERROR(
        BackwardWeightTile(tile, dy + first_output(tile), outputs_, x, tokens));
  }
  return absl::OkStatus();
}

absl::Status TiledLinear::ForwardTile(uint64_t tile, const float* x, int64_t tokens, Into into,
                                      float* y, int64_t y_stride) const {
  return context_->WithWeights(parameter_, tile, [&](const float* weights) {
    ParallelMultiply(context_->pool, {tokens, tile_outputs(tile), inputs_}, Plain(x, inputs_),
                     Transposed(weights, inputs_), into, y, y_stride);
  });
}

absl::Status TiledLinear::BackwardInputTile(uint64_t tile, const float* dy, int64_t dy_stride,
                                            int64_t tokens, Into into, float* dx) const {
  return context_->WithWeights(parameter_, tile, [&](const float* weights) {
    ParallelMultiply(context_->pool, {tokens, inputs_, tile_outputs(tile)}, Plain(dy, dy_stride),
                     Plain(weights, inputs_), into, dx, inputs_);
  });
}

absl::Status TiledLinear::BackwardWeightTile(uint64_t tile, const float* dy, int64_t dy_stride,
                                             const float* x, int64_t tokens) const {
  return context_->gradients->Add(
      parameter_, tile, Gradients::UseOfParameter::kFirst, [&](float* out) {
        ParallelMultiply(context_->pool, {tile_outputs(tile), inputs_, tokens},
                         Transposed(dy, dy_stride), Plain(x, inputs_), Into::kOverwrite, out,
                         inputs_);
      });
}

}  // namespace spillway::trainer
