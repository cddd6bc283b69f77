// SPDX-License-Identifier: Apache-2.0
//
// What follows from the norms of a tensor, as plainly as it can be written, and Adafactor on a
// matrix an element at a time.

#ifndef SPILLWAY_TESTS_OPTIM_NORM_REFERENCE_H_
#define SPILLWAY_TESTS_OPTIM_NORM_REFERENCE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "spillway/optimizer.h"

namespace spillway::optim {

// Whether the rule takes norms of a tensor of so many dimensions.
bool NeedsNorms(const Rule& rule, size_t dimensions);

// What a tensor's step is multiplied by, from the lengths of its weight and of its direction.
float ReferenceStepSize(const Rule& rule, const Update& update, double weight, double direction,
                        size_t n);

// Adafactor on the matrices of the last two dimensions; `rows` and `columns` have their means.
void UpdateFactoredReference(const Rule& rule, const Update& update,
                             const std::vector<int64_t>& shape, const std::vector<float>& gradients,
                             std::vector<float>* master, std::vector<float>* rows,
                             std::vector<float>* columns);

}  // namespace spillway::optim

#endif  // SPILLWAY_TESTS_OPTIM_NORM_REFERENCE_H_
