// SPDX-License-Identifier: Apache-2.0
//
// The lowest cost of an in-place update: reads, multiplies and writes every float, with the
// instruction set that the update's kernels use.

#ifndef SPILLWAY_TOOLS_SPILLWAY_BENCH_UPDATE_IN_PLACE_SCALE_H_
#define SPILLWAY_TOOLS_SPILLWAY_BENCH_UPDATE_IN_PLACE_SCALE_H_

#include <cstdint>

namespace spillway::bench_update {

void ScaleInPlace(float* values, int64_t n);

}  // namespace spillway::bench_update

#endif  // SPILLWAY_TOOLS_SPILLWAY_BENCH_UPDATE_IN_PLACE_SCALE_H_
