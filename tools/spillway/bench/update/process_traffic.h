// SPDX-License-Identifier: Apache-2.0
//
// What the kernel says this process has moved, which no count of our own can flatter.

#ifndef SPILLWAY_TOOLS_SPILLWAY_BENCH_UPDATE_PROCESS_TRAFFIC_H_
#define SPILLWAY_TOOLS_SPILLWAY_BENCH_UPDATE_PROCESS_TRAFFIC_H_

#include "spillway/stats.h"

namespace spillway::bench_update {

// Bytes that the kernel has asked block devices to read and write for this process, since it
// began, by /proc/self/io: as /proc/diskstats counts them, but without other processes. Zeros where
// the kernel keeps no such count.
Traffic ProcessTraffic();

}  // namespace spillway::bench_update

#endif  // SPILLWAY_TOOLS_SPILLWAY_BENCH_UPDATE_PROCESS_TRAFFIC_H_
