// SPDX-License-Identifier: Apache-2.0
//
// The kernel's count of the bytes that this process has moved. It is independent of the engine's
// own counters.

#ifndef SPILLWAY_TOOLS_SPILLWAY_BENCH_UPDATE_PROCESS_TRAFFIC_H_
#define SPILLWAY_TOOLS_SPILLWAY_BENCH_UPDATE_PROCESS_TRAFFIC_H_

#include "spillway/stats.h"

namespace spillway::bench_update {

// Returns the bytes of the reads and writes that the kernel has sent to block devices for this
// process since it started, from /proc/self/io. /proc/diskstats counts the same, but for all
// processes. Zeros if the kernel keeps no such count.
Traffic ProcessTraffic();

}  // namespace spillway::bench_update

#endif  // SPILLWAY_TOOLS_SPILLWAY_BENCH_UPDATE_PROCESS_TRAFFIC_H_
