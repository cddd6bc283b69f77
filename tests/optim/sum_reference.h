// SPDX-License-Identifier: Apache-2.0
//
// Sums of squares in the order that is promised, as plainly as they can be written.

#ifndef SPILLWAY_TESTS_OPTIM_SUM_REFERENCE_H_
#define SPILLWAY_TESTS_OPTIM_SUM_REFERENCE_H_

#include <cstddef>
#include <vector>

namespace spillway::optim {

// Of a block of at most 16384 elements: 32 lanes, added up in pairs.
double ReferenceBlockSum(const float* values, size_t n);

// Of a tensor whose rows are cut into blocks.
double ReferenceSumOfSquares(const std::vector<float>& values, size_t row_elements);

}  // namespace spillway::optim

#endif  // SPILLWAY_TESTS_OPTIM_SUM_REFERENCE_H_
