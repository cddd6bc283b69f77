// SPDX-License-Identifier: Apache-2.0

#ifndef SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_MATRIX_OF_H_
#define SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_MATRIX_OF_H_

#include "src/simt/elements.h"
#include "tools/trainer/compute/gpu/matrix.h"
#include "tools/trainer/compute/view.h"

namespace spillway::trainer::gpu {

// REQUIRES: the view is of fp32, fp16 or bf16.
inline simt::Element ElementOf(DType type) {
  switch (type) {
    case DType::kF16: return simt::Element::kF16;
    case DType::kBF16: return simt::Element::kBF16;
    default: return simt::Element::kF32;
  }
}

// On a GPU a view is stored in the type to which it is rounded, so kernels see one type.
inline Matrix MatrixOf(const View& view) {
  return {view.data, ElementOf(view.stored), view.rows, view.columns, view.stride};
}

}  // namespace spillway::trainer::gpu

#endif  // SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_MATRIX_OF_H_
