// SPDX-License-Identifier: Apache-2.0
//
// The least that an update in place can cost: every float is read, multiplied and written, on the
// instruction set that the update's kernels take.

#ifndef SPILLWAY_TOOLS_SPILLWAY_BENCH_UPDATE_IN_PLACE_SCALE_H_
#define SPILLWAY_TOOLS_SPILLWAY_BENCH_UPDATE_IN_PLACE_SCALE_H_

#include <cstdint>

namespace spillway::bench_update {

void ScaleInPlace(float* values, int64_t n);

}  // namespace spillway::bench_update

#endif  // SPILLWAY_TOOLS_SPILLWAY_BENCH_UPDATE_IN_PLACE_SCALE_H_
