// SPDX-License-Identifier: Apache-2.0
//
// What does it cost to hand a round of work to the threads and to wait for its end? An update of a
// tile of 4 MiB is one round, which 16 threads compute in some 200 us; so a round's own cost may be
// at most 10 us. The rounds follow one another at once, as the tiles of an update do: each thread
// has one part, which takes nothing.
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

// From 2 to all cores of the machine.
void ThreadCounts(benchmark::internal::Benchmark* round) {
  const auto cores = static_cast<int64_t>(std::thread::hardware_concurrency());
  for (int64_t threads = 2; threads < cores; threads *= 2) round->Arg(threads);
  round->Arg(std::max<int64_t>(cores, 2));
}

BENCHMARK(Round)->Apply(ThreadCounts)->UseRealTime();

}  // namespace
}  // namespace spillway

BENCHMARK_MAIN();
