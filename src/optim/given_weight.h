// SPDX-License-Identifier: Apache-2.0
//
// A 16-bit weight in the caller's memory, which somebody may have written since the last update: an
// element that is not what its master weight rounds to is the master weight's new value.

#ifndef SPILLWAY_OPTIM_GIVEN_WEIGHT_H_
#define SPILLWAY_OPTIM_GIVEN_WEIGHT_H_

#include <cstdint>

#include "spillway/types.h"

namespace spillway::optim {

inline constexpr int64_t kMostGivenElements = 512;  // at once

// Writes what was given into `master`. REQUIRES: n is at most kMostGivenElements.
void TakeGiven(DType dtype, const void* weight, int64_t n, float* master);

}  // namespace spillway::optim

#endif  // SPILLWAY_OPTIM_GIVEN_WEIGHT_H_
