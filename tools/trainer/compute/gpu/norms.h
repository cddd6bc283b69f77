// SPDX-License-Identifier: Apache-2.0
//
// RMS norm and layer norm of rows, and their gradients. A block takes a row; the gradients of scale
// and shift are sums of columns.
//
// With s the inverse deviation, m the mean (RMS norm: 0) and n = (x − m)·s:
//   y = n·scale + shift
//   with g = dy·scale:  dx += s·(g − mean(g) − n·mean(g·n));  RMS norm has no mean(g)
//   d scale = Σ dy·n,  d shift = Σ dy, over the rows

#ifndef SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_NORMS_H_
#define SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_NORMS_H_

#include <cmath>
#include <cstdint>

#include "src/simt/block.h"
#include "src/simt/device_code.h"
#include "tools/trainer/compute/gpu/matrix.h"
#include "tools/trainer/compute/gpu/sums.h"

namespace spillway::trainer::gpu {

// kCentered: layer norm, which subtracts the mean and has a shift.
template <bool kCentered>
struct Norm {
  static constexpr int kThreads = 256;
  template <class Block>
  using Shared = simt::Reduction<Block, float, kThreads>;

  float epsilon;
  Matrix x;             // [rows, width]
  Matrix scale, shift;  // [1, width]; RMS norm has no shift
  Matrix stats;         // [2, rows]: inverse deviations, then means; written
  Matrix y;             // [rows, width]

  int64_t blocks() const { return x.rows; }

  // The squares are those of the differences from the mean: in fp32 the difference of mean squares
  // would lose a variance that is small beside the mean.
  template <class Block>
  SPILLWAY_SIMT void Run(Block& block, Shared<Block>& shared) const {
    const int64_t row = block.index();
    const auto width = static_cast<float>(x.columns);
    float mean = 0;
    if constexpr (kCentered) {
      float sum = 0;
      simt::ForElements<kThreads>(block, 0, x.columns, [&](int64_t i) { sum += x.Get(row, i); });
      mean = simt::BlockSum(block, shared, sum) / width;
    }
    float squares = 0;
    simt::ForElements<kThreads>(block, 0, x.columns, [&](int64_t i) {
      const float difference = x.Get(row, i) - mean;
      squares += difference * difference;
    });
    squares = simt::BlockSum(block, shared, squares);
    const float inverse = 1.0f / std::sqrt(squares / width + epsilon);
    simt::ForElements<kThreads>(block, 0, x.columns, [&](int64_t i) {
      const float scaled = (x.Get(row, i) - mean) * inverse * scale.Get(i);
      y.Set(row, i, kCentered ? scaled + shift.Get(i) : scaled);
    });
    if (block.thread() != 0) return;
    stats.Set(0, row, inverse);
    if (kCentered) stats.Set(1, row, mean);
  }
};

// Adds the gradient of x to dx.
template <bool kCentered>
struct NormGradient {
  static constexpr int kThreads = 256;
  template <class Block>
  using Shared = simt::Reduction<Block, float, kThreads>;

  Matrix x, scale, stats;  // of a Norm
  Matrix dy, dx;           // [rows, width]

  int64_t blocks() const { return x.rows; }

  template <class Block>
  SPILLWAY_SIMT void Run(Block& block, Shared<Block>& shared) const {
    const int64_t row = block.index();
    const float inverse = stats.Get(0, row);
    const float mean = kCentered ? stats.Get(1, row) : 0.0f;
    const auto width = static_cast<float>(x.columns);
    float sum = 0, dot = 0;
    simt::ForElements<kThreads>(block, 0, x.columns, [&](int64_t i) {
      const float g = dy.Get(row, i) * scale.Get(i);
      sum += g;
      dot += g * ((x.Get(row, i) - mean) * inverse);
    });
    dot = simt::BlockSum(block, shared, dot) / width;
    sum = kCentered ? simt::BlockSum(block, shared, sum) / width : 0.0f;
    simt::ForElements<kThreads>(block, 0, x.columns, [&](int64_t i) {
      const float g = dy.Get(row, i) * scale.Get(i);
      const float normed = (x.Get(row, i) - mean) * inverse;
      dx.Set(row, i, dx.Get(row, i) + inverse * (g - sum - normed * dot));
    });
  }
};

// The gradients of scale and shift, which are overwritten. They may be the views of scale and
// shift, so this runs after NormGradient.
template <bool kCentered>
struct ScaleTerms {
  static constexpr int kSums = kCentered ? 2 : 1;

  Matrix x, stats, dy;
  Matrix scale_gradient, shift_gradient;  // [1, width]

  SPILLWAY_SIMT int64_t rows() const { return x.rows; }
  SPILLWAY_SIMT int64_t columns() const { return x.columns; }
  SPILLWAY_SIMT void Add(int64_t row, int64_t column, float* sums) const {
    const float mean = kCentered ? stats.Get(1, row) : 0.0f;
    const float gradient = dy.Get(row, column);
    sums[0] += gradient * ((x.Get(row, column) - mean) * stats.Get(0, row));
    if constexpr (kCentered) sums[1] += gradient;
  }
  SPILLWAY_SIMT void Put(int64_t column, const float* sums) const {
    scale_gradient.Set(column, sums[0]);
    if constexpr (kCentered) shift_gradient.Set(column, sums[1]);
  }
};
template <bool kCentered>
using ScaleGradient = ColumnSums<ScaleTerms<kCentered>>;

}  // namespace spillway::trainer::gpu

#endif  // SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_NORMS_H_
