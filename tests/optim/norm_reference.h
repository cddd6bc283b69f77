// SPDX-License-Identifier: Apache-2.0
//
// A simple reference for the step sizes that follow from the norms of a tensor, and for Adafactor
// on a matrix, one element at a time.

#ifndef SPILLWAY_TESTS_OPTIM_NORM_REFERENCE_H_
#define SPILLWAY_TESTS_OPTIM_NORM_REFERENCE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "spillway/optimizer.h"

namespace spillway::optim {

// Whether the rule takes norms of a tensor with that number of dimensions.
bool NeedsNorms(const Rule& rule, size_t dimensions);

// Returns the factor of a tensor's step, given the norms of its weight and of its direction. The
// tensor has `n` elements.
float ReferenceStepSize(const Rule& rule, const Update& update, double weight, double direction,
                        size_t n);

// Applies Adafactor to the matrices of the last two dimensions. `rows` and `columns` hold the
// running means of the gradient's squares.
void UpdateFactoredReference(const Rule& rule, const Update& update,
                             const std::vector<int64_t>& shape, const std::vector<float>& gradients,
                             std::vector<float>* master, std::vector<float>* rows,
                             std::vector<float>* columns);

}  // namespace spillway::optim

#endif  // SPILLWAY_TESTS_OPTIM_NORM_REFERENCE_H_
