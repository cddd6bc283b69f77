// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/kernels/gemm.h"

#include <cblas.h>

#include <algorithm>
#include <cstdint>
#include <limits>

namespace spillway::trainer {
namespace {

// Parts begin at multiples of this, the width of BLAS's inner kernels.
constexpr int64_t kGrain = 16;

struct Grid {
  int64_t down = 1;    // parts of the rows
  int64_t across = 1;  // parts of the columns
};

// Each part packs its own rows of a and columns of b before it multiplies; BLAS, which sees the
// transposed problem, takes about 8/5 of the time for an element of b. The best grid packs least.
constexpr double kPackRow = 5;
constexpr double kPackColumn = 8;

Grid ChooseGrid(int64_t rows, int64_t columns, int64_t threads) {
  Grid best;
  double least = std::numeric_limits<double>::infinity();
  for (int64_t down = 1; down <= threads; ++down) {
    if (threads % down != 0) continue;
    const int64_t across = threads / down;
    const double packing = kPackRow * static_cast<double>(std::max(rows / down, kGrain)) +
                           kPackColumn * static_cast<double>(std::max(columns / across, kGrain));
    if (packing < least) {
      least = packing;
      best = {down, across};
    }
  }
  return best;
}

// The start of part `index` when [0, n) is cut into `parts`.
int64_t PartStart(int64_t n, int64_t parts, int64_t index) {
  const int64_t grains = (n + kGrain - 1) / kGrain;
  return std::min(n, grains * index / parts * kGrain);
}

const float* SkipRows(const MatrixView& a, int64_t rows) {
  return a.data + (a.transposed ? rows : rows * a.stride);
}

const float* SkipColumns(const MatrixView& b, int64_t columns) {
  return b.data + (b.transposed ? columns * b.stride : columns);
}

}  // namespace

void Multiply(const ProductShape& shape, const MatrixView& a, const MatrixView& b, Into into,
              float* c, int64_t c_stride) {
  cblas_sgemm(CblasRowMajor, a.transposed ? CblasTrans : CblasNoTrans,
              b.transposed ? CblasTrans : CblasNoTrans, static_cast<int>(shape.rows),
              static_cast<int>(shape.columns), static_cast<int>(shape.inner), 1.0f, a.data,
              static_cast<int>(a.stride), b.data, static_cast<int>(b.stride),
              into == Into::kAdd ? 1.0f : 0.0f, c, static_cast<int>(c_stride));
}

void ParallelMultiply(ThreadPool* pool, const ProductShape& shape, const MatrixView& a,
                      const MatrixView& b, Into into, float* c, int64_t c_stride) {
  const Grid grid = ChooseGrid(shape.rows, shape.columns, pool->num_threads());
  pool->ParallelFor(grid.down * grid.across, [&](int64_t part) {
    const int64_t top = PartStart(shape.rows, grid.down, part / grid.across);
    const int64_t bottom = PartStart(shape.rows, grid.down, part / grid.across + 1);
    const int64_t left = PartStart(shape.columns, grid.across, part % grid.across);
    const int64_t right = PartStart(shape.columns, grid.across, part % grid.across + 1);
    if (top == bottom || left == right) return;
    Multiply({bottom - top, right - left, shape.inner}, {SkipRows(a, top), a.stride, a.transposed},
             {SkipColumns(b, left), b.stride, b.transposed}, into, c + top * c_stride + left,
             c_stride);
  });
}

void UseSerialBlas() { openblas_set_num_threads(1); }

}  // namespace spillway::trainer
