// SPDX-License-Identifier: Apache-2.0
//
// Sums of squares in fp64 whose bits depend on the elements and their places alone. The square of
// element i of a block is added to lane i mod 32, in order, and the lanes are added up in pairs. So
// a block may be cut anywhere, as long as its pieces are added in order, and vectors of any width
// do the same additions. A square of a float is exact in fp64, and neither overflows nor vanishes.

#ifndef SPILLWAY_OPTIM_SUM_OF_SQUARES_H_
#define SPILLWAY_OPTIM_SUM_OF_SQUARES_H_

#include <cstdint>

namespace spillway::optim {

inline constexpr uint64_t kSumLanes = 32;

struct SumLanes {
  alignas(64) double lane[kSumLanes] = {};
};

// Adds the squares of n elements of a block, the first of which is the block's element `first`.
void AddSquares(const float* values, int64_t n, uint64_t first, SumLanes* sums);

double Total(const SumLanes& sums);

// Adds the square of values[i] to sums[i].
void AddSquaresApart(const float* values, int64_t n, double* sums);

}  // namespace spillway::optim

#endif  // SPILLWAY_OPTIM_SUM_OF_SQUARES_H_
