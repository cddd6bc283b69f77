// SPDX-License-Identifier: Apache-2.0
//
// Takes up what the caller may have written into a 16-bit weight in its own memory since the last
// update: an element that differs from its rounded master weight is the master weight's new value.

#ifndef SPILLWAY_OPTIM_GIVEN_WEIGHT_H_
#define SPILLWAY_OPTIM_GIVEN_WEIGHT_H_

#include <cstdint>

#include "spillway/types.h"

namespace spillway::optim {

inline constexpr int64_t kMostGivenElements = 512;  // most elements in one call

// Writes the changed elements of `weight` into `master`. REQUIRES: n is at most kMostGivenElements.
void TakeGiven(DType dtype, const void* weight, int64_t n, float* master);

}  // namespace spillway::optim

#endif  // SPILLWAY_OPTIM_GIVEN_WEIGHT_H_
