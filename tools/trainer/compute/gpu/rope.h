// SPDX-License-Identifier: Apache-2.0
//
// Rotary position embedding: rotates the pair of elements j and j + head_dim/2 of each head, in
// place. A block takes a token.

#ifndef SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_ROPE_H_
#define SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_ROPE_H_

#include <cstdint>

#include "src/simt/block.h"
#include "src/simt/device_code.h"
#include "tools/trainer/compute/gpu/matrix.h"

namespace spillway::trainer::gpu {

struct Rope {
  static constexpr int kThreads = 128;
  template <class Block>
  using Shared = simt::NoShared;

  Matrix cosines, sines;  // [positions, head_dim/2]
  int64_t length;         // token t has position t mod length
  int64_t head_dim;
  bool backward;  // by the opposite angle
  Matrix x;       // [tokens, ...], from the first head's first column on
  int64_t heads;
  int64_t head_stride;  // columns from head to head

  int64_t blocks() const { return x.rows; }

  template <class Block>
  SPILLWAY_SIMT void Run(Block& block, simt::NoShared& /*shared*/) const {
    const int64_t row = block.index();
    const int64_t position = row % length;
    const auto half = static_cast<int>(head_dim / 2);
    simt::ForElements<kThreads>(block, 0, heads * half, [&](int64_t pair) {
      const int head = static_cast<int>(pair) / half;
      const int j = static_cast<int>(pair) % half;
      const float cosine = cosines.Get(position, j);
      const float sine = backward ? -sines.Get(position, j) : sines.Get(position, j);
      const int64_t at = head * head_stride + j;
      const float low = x.Get(row, at);
      const float high = x.Get(row, at + half);
      x.Set(row, at, low * cosine - high * sine);
      x.Set(row, at + half, high * cosine + low * sine);
    });
  }
};

}  // namespace spillway::trainer::gpu

#endif  // SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_ROPE_H_
