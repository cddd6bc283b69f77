// SPDX-License-Identifier: Apache-2.0
//
// A simple reference for sums of squares, in the order that sum_of_squares.h and tensor_sums.h
// define.

#ifndef SPILLWAY_TESTS_OPTIM_SUM_REFERENCE_H_
#define SPILLWAY_TESTS_OPTIM_SUM_REFERENCE_H_

#include <cstddef>
#include <vector>

namespace spillway::optim {

// Returns the sum of a block of at most 16384 elements: 32 lanes, added up in pairs.
double ReferenceBlockSum(const float* values, size_t n);

// Returns the sum of a tensor whose rows are cut into blocks.
double ReferenceSumOfSquares(const std::vector<float>& values, size_t row_elements);

}  // namespace spillway::optim

#endif  // SPILLWAY_TESTS_OPTIM_SUM_REFERENCE_H_
