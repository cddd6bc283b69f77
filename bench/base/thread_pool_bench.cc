// SPDX-License-Identifier: Apache-2.0
//
// Question: what does it cost to hand a round of work to the threads and to wait for its end?
// Limit: 10 us a round, because the update of a tile of 4 MiB is one round, which 16 threads
// compute in some 200 us.
//
// Method: rounds follow one another without a pause, as the tiles of an update do. Each thread has
// one part, which does no work.
//
//   build/release/bin/thread_pool_bench [--benchmark_repetitions=5]

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdint>
#include <thread>

#include "spillway/thread_pool.h"

namespace spillway {
namespace {

void Round(benchmark::State& state) {
  const int64_t threads = state.range(0);
  ThreadPool pool(static_cast<int>(threads));
  for (auto _ : state)
    pool.ParallelFor(threads, [](int64_t part) { benchmark::DoNotOptimize(part); });
}

// Adds thread counts from 2 to all cores of the machine.
void ThreadCounts(benchmark::internal::Benchmark* round) {
  const auto cores = static_cast<int64_t>(std::thread::hardware_concurrency());
  for (int64_t threads = 2; threads < cores; threads *= 2) round->Arg(threads);
  round->Arg(std::max<int64_t>(cores, 2));
}

BENCHMARK(Round)->Apply(ThreadCounts)->UseRealTime();

}  // namespace
}  // namespace spillway

BENCHMARK_MAIN();
