// SPDX-License-Identifier: Apache-2.0
//
// Sums over many elements, in an order that follows from sizes alone: the sum of squares of a
// gradient's tile in fp64, and sums of a matrix's columns in fp32.

#ifndef SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_SUMS_H_
#define SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_SUMS_H_

#include <cstdint>

#include "src/simt/block.h"
#include "src/simt/device_code.h"
#include "tools/trainer/compute/gpu/matrix.h"

namespace spillway::trainer::gpu {

// sums[i] = the sum of squares of the i-th run of kElements elements; there are blocks() of them.
struct SumOfSquares {
  static constexpr int kThreads = 256;
  static constexpr int64_t kElements = 4096;
  template <class Block>
  using Shared = simt::Reduction<Block, double, kThreads>;

  Matrix tile;  // contiguous
  double* sums;

  int64_t blocks() const { return simt::BlocksOf(tile.elements(), kElements); }

  template <class Block>
  SPILLWAY_SIMT void Run(Block& block, Shared<Block>& shared) const {
    const int64_t begin = block.index() * kElements;
    const int64_t n = tile.elements();
    const int64_t end = begin + kElements < n ? begin + kElements : n;
    double sum = 0;
    simt::ForElements<kThreads>(block, begin, end, [&](int64_t i) {
      const double value = tile.Get(i);
      sum += value * value;
    });
    sum = simt::BlockSum(block, shared, sum);
    if (block.thread() == 0) sums[block.index()] = sum;
  }
};

// *sum = the sum of n numbers.
struct AddUp {
  static constexpr int kThreads = 256;
  template <class Block>
  using Shared = simt::Reduction<Block, double, kThreads>;

  const double* numbers;
  int64_t n;
  double* sum;

  int64_t blocks() const { return 1; }

  template <class Block>
  SPILLWAY_SIMT void Run(Block& block, Shared<Block>& shared) const {
    double part = 0;
    simt::ForElements<kThreads>(block, 0, n, [&](int64_t i) { part += numbers[i]; });
    part = simt::BlockSum(block, shared, part);
    if (block.thread() == 0) *sum = part;
  }
};

// A kernel that sums terms over rows, for each column: a block has kColumns columns, and kLanes
// threads share the rows of each. Terms has kSums, columns() and rows(), Add(row, column, sums),
// which adds the terms of an element to sums[kSums], and Put(column, sums).
template <class Terms>
struct ColumnSums {
  static constexpr int kColumns = 32;
  static constexpr int kLanes = 16;
  static constexpr int kThreads = kColumns * kLanes;
  template <class Block>
  struct Shared {
    typename Block::template Array<float, kThreads * Terms::kSums> sums;
  };

  Terms terms;

  int64_t blocks() const { return simt::BlocksOf(terms.columns(), kColumns); }

  template <class Block>
  SPILLWAY_SIMT void Run(Block& block, Shared<Block>& shared) const {
    const int lane = block.thread() / kColumns;
    const int64_t column = block.index() * kColumns + block.thread() % kColumns;
    const bool is_inside = column < terms.columns();
    float sums[Terms::kSums] = {};
    if (is_inside) {
      for (int64_t row = lane; row < terms.rows(); row += kLanes) terms.Add(row, column, sums);
    }
    for (int s = 0; s < Terms::kSums; ++s)
      shared.sums.Write(s * kThreads + block.thread(), sums[s]);
    block.Sync();
    if (lane != 0 || !is_inside) return;
    for (int s = 0; s < Terms::kSums; ++s) {
      for (int other = 1; other < kLanes; ++other)
        sums[s] += shared.sums.Read(s * kThreads + other * kColumns + block.thread());
    }
    terms.Put(column, sums);
  }
};

// gradient[1, columns] = the sum of dy's rows.
struct BiasTerms {
  static constexpr int kSums = 1;

  Matrix dy, gradient;

  SPILLWAY_SIMT int64_t rows() const { return dy.rows; }
  SPILLWAY_SIMT int64_t columns() const { return dy.columns; }
  SPILLWAY_SIMT void Add(int64_t row, int64_t column, float* sums) const {
    sums[0] += dy.Get(row, column);
  }
  SPILLWAY_SIMT void Put(int64_t column, const float* sums) const { gradient.Set(column, sums[0]); }
};
using BiasGradient = ColumnSums<BiasTerms>;

}  // namespace spillway::trainer::gpu

#endif  // SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_SUMS_H_
