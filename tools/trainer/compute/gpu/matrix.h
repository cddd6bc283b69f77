// SPDX-License-Identifier: Apache-2.0
//
// A View as kernels take it: view.h is C++20, and kernels are C++17.

#ifndef SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_MATRIX_H_
#define SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_MATRIX_H_

#include <cstdint>

#include "src/simt/device_code.h"
#include "src/simt/elements.h"

namespace spillway::trainer::gpu {

// Row-major, in memory that the kernel's device reads and writes.
struct Matrix {
  void* data = nullptr;
  simt::Element type = simt::Element::kF32;
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;  // elements from row to row

  SPILLWAY_SIMT int64_t elements() const { return rows * columns; }

  SPILLWAY_SIMT float Get(int64_t row, int64_t column) const {
    return simt::Load(type, data, row * stride + column);
  }
  SPILLWAY_SIMT void Set(int64_t row, int64_t column, float value) const {
    simt::Store(type, value, data, row * stride + column);
  }
  // Of a contiguous matrix.
  SPILLWAY_SIMT float Get(int64_t index) const { return simt::Load(type, data, index); }
  SPILLWAY_SIMT void Set(int64_t index, float value) const {
    simt::Store(type, value, data, index);
  }
};

}  // namespace spillway::trainer::gpu

#endif  // SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_MATRIX_H_
