// SPDX-License-Identifier: Apache-2.0

#ifndef SPILLWAY_TOOLS_TRAINER_KERNELS_HEAD_ROWS_H_
#define SPILLWAY_TOOLS_TRAINER_KERNELS_HEAD_ROWS_H_

#include <cstdint>

namespace spillway::trainer {

// The heads of rows of tokens: head h of row r begins at data + r·stride + h·head_stride.
template <typename Float>
struct HeadRows {
  Float* data = nullptr;
  int64_t stride = 0;
  int64_t head_stride = 0;

  Float* At(int64_t row, int64_t head) const { return data + row * stride + head * head_stride; }
};

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_KERNELS_HEAD_ROWS_H_
