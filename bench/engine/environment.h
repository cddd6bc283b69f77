// SPDX-License-Identifier: Apache-2.0
//
// Describes the machine that a benchmark ran on, for the head of its report.

#ifndef SPILLWAY_BENCH_ENGINE_ENVIRONMENT_H_
#define SPILLWAY_BENCH_ENGINE_ENVIRONMENT_H_

#include <string>

namespace spillway::bench {

// Adds the CPU model, the kernel release and the commit to the context that Google Benchmark
// prints, and the file system of `folder` if that is not empty. The context has the load averages
// already.
void DescribeMachine(const std::string& folder);

}  // namespace spillway::bench

#endif  // SPILLWAY_BENCH_ENGINE_ENVIRONMENT_H_
