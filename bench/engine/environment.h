// SPDX-License-Identifier: Apache-2.0
//
// What a figure was measured on, for the head of a report.

#ifndef SPILLWAY_BENCH_ENGINE_ENVIRONMENT_H_
#define SPILLWAY_BENCH_ENGINE_ENVIRONMENT_H_

#include <string>

namespace spillway::bench {

// Adds CPU, kernel, commit and, for a folder that is not empty, its file system to the context
// that Google Benchmark prints (which has the load averages already).
void DescribeMachine(const std::string& folder);

}  // namespace spillway::bench

#endif  // SPILLWAY_BENCH_ENGINE_ENVIRONMENT_H_
