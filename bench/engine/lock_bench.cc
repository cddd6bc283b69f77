// SPDX-License-Identifier: Apache-2.0
//
// Question: how long may a lease, a release or a completion wait for a lock that another thread
// holds, with many tiles, while a plan is made and while transfers run? Limits, for a million
// tiles: at most one of 10,000 holds of a lock lasts over 200 us of its holder's CPU time, and none
// over 5 ms; EndStep of a known step takes under 100 us. The output also has wall times and the
// time of a lease.
//
// Method: a store has tiles of 4 KiB, device memory for 10% of them and pinned memory for 30%. Two
// threads lease one half of the tiles each, step after step, and write one tile of eight. All
// mutexes of the process are measured (lock_holds.h). A row of the output is one step. The first
// steps run on demand, the plan is made during the second, and the last steps follow it.
//
// A thread's CPU time also counts interrupts and, on a virtual machine, what the host takes from
// it. So the output says first how often a thread that only reads its clock has over 200 us between
// two readings. At that rate, the "machine" columns say how many of a step's holds would be over
// the limit if every hold were short.
//
// Second question: how long does a lease of a tile in memory take, from its request to its end,
// while a plan is made? Limit: p50 and p99.9 are at most 1.1 times those without planning. Method:
// each round opens a new engine and runs a step. One thread then takes leases until that step's
// plan is made, and as many again afterwards.
//
//   build/release/bin/lock_bench [--folder DIR] [--tiles N] [--steps N] [--rounds N]

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "bench/engine/lock_holds.h"
#include "spillway/engine.h"
#include "src/base/clock.h"
#include "src/base/status_macros.h"

namespace spillway::bench {
namespace {

constexpr uint64_t kTileBytes = 4096;
constexpr int kThreads = 2;

struct StepFigures {
  double seconds = 0, end_step_seconds = 0, end_step_cpu_seconds = 0;
  uint64_t pulled_before = 0, moved_before = 0;
  std::vector<int64_t> lease_ns;
};

absl::Status LeaseShare(Engine* engine, TensorId id, uint64_t begin, uint64_t end,
                        std::vector<int64_t>* lease_ns) {
  lease_ns->reserve(end - begin);
  for (uint64_t tile = begin; tile < end; ++tile) {
    const int64_t asked = base::NowNs();
    const Access access = tile % 8 == 0 ? Access::kReadWrite : Access::kRead;
    SPILLWAY_ASSIGN_OR_RETURN(const Lease lease, engine->Acquire({id, tile}, access));
    lease_ns->push_back(base::NowNs() - asked);
    if (access == Access::kReadWrite) lease.as<std::byte>()[0] ^= std::byte{1};
  }
  return absl::OkStatus();
}

uint64_t MovedBytes(const EngineStats& stats) {
  return stats.nvme.read_bytes + stats.nvme.written_bytes + stats.pinned.read_bytes +
         stats.pinned.written_bytes;
}

absl::Status Step(Engine* engine, TensorId id, uint64_t num_tiles, StepFigures* figures) {
  const double begin = base::Now();
  std::vector<absl::Status> ended(kThreads);
  std::vector<std::vector<int64_t>> lease_ns(kThreads);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      ended[thread] = LeaseShare(engine, id, num_tiles * thread / kThreads,
                                 num_tiles * (thread + 1) / kThreads, &lease_ns[thread]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (absl::Status& status : ended) SPILLWAY_RETURN_IF_ERROR(status);
  const double end = base::Now();
  const int64_t end_cpu_ns = base::ThreadCpuNs();
  SPILLWAY_RETURN_IF_ERROR(engine->EndStep());
  figures->end_step_seconds = base::Now() - end;
  figures->end_step_cpu_seconds = static_cast<double>(base::ThreadCpuNs() - end_cpu_ns) * 1e-9;
  figures->seconds = end - begin;
  for (const std::vector<int64_t>& of : lease_ns)
    figures->lease_ns.insert(figures->lease_ns.end(), of.begin(), of.end());
  std::sort(figures->lease_ns.begin(), figures->lease_ns.end());
  return absl::OkStatus();
}

// How often, in a second of its CPU time, a thread that holds no lock has more than 200 us or 5 ms
// of CPU time between two readings of its clock.
struct Interruptions {
  double over_200us = 0;
  double over_5ms = 0;
};

Interruptions MeasureInterruptions() {
  constexpr int64_t kMeasuredNs = 5'000'000'000;
  std::atomic<int64_t> over_200us = 0, over_5ms = 0, cpu_ns = 0;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&] {
      const int64_t begin = base::ThreadCpuNs();
      int64_t last = begin;
      for (const int64_t end = base::NowNs() + kMeasuredNs; base::NowNs() < end;) {
        const int64_t now = base::ThreadCpuNs();
        if (now - last > 200'000) ++over_200us;
        if (now - last > 5'000'000) ++over_5ms;
        last = now;
      }
      cpu_ns += last - begin;
    });
  }
  for (std::thread& thread : threads) thread.join();
  const double seconds = static_cast<double>(cpu_ns) * 1e-9;
  return {.over_200us = static_cast<double>(over_200us) / seconds,
          .over_5ms = static_cast<double>(over_5ms) / seconds};
}

void Print(int step, const StepFigures& figures, const EngineStats& stats, const LockHolds& holds,
           const Interruptions& machine) {
  const auto lease_us = [&](double part) {
    const auto at = static_cast<size_t>(part * static_cast<double>(figures.lease_ns.size() - 1));
    return static_cast<double>(figures.lease_ns[at]) * 1e-3;
  };
  std::printf(
      "%4d %8.2f %8.1f %5.1f %9.2f %9.1f %6llu %6llu %8llu %8.1f %11llu %8llu %8.0f %6llu %8.1f "
      "%9.0f %9.0f\n",
      step, figures.seconds, figures.end_step_seconds * 1e6, figures.end_step_cpu_seconds * 1e6,
      lease_us(0.5), lease_us(0.999), static_cast<unsigned long long>(stats.plan.plans),
      static_cast<unsigned long long>(stats.plan.steps),
      static_cast<unsigned long long>(stats.plan.pulled - figures.pulled_before),
      static_cast<double>(MovedBytes(stats) - figures.moved_before) / (1 << 20),
      static_cast<unsigned long long>(holds.holds),
      static_cast<unsigned long long>(holds.over_200us), machine.over_200us * holds.cpu_seconds,
      static_cast<unsigned long long>(holds.over_5ms), machine.over_5ms * holds.cpu_seconds,
      static_cast<double>(holds.longest_cpu_ns) * 1e-3,
      static_cast<double>(holds.longest_wall_ns) * 1e-3);
  std::fflush(stdout);
}

// Leases tiles that stay in memory, one after the other, until `stop` returns true or `lease_ns`
// has at least `most` times. Checks both before every 1,000 leases.
template <typename Stop>
absl::Status LeaseResident(Engine* engine, TensorId id, const Stop& stop, size_t most,
                           std::vector<int64_t>* lease_ns) {
  constexpr uint64_t kTiles = 64;
  for (uint64_t tile = 0; tile < kTiles; ++tile)
    SPILLWAY_RETURN_IF_ERROR(engine->AcquireHost({id, tile}, Access::kRead).status());
  while (lease_ns->size() < most && !stop()) {
    for (uint64_t i = 0; i < 1000; ++i) {
      const int64_t asked = base::NowNs();
      SPILLWAY_RETURN_IF_ERROR(engine->AcquireHost({id, i % kTiles}, Access::kRead).status());
      lease_ns->push_back(base::NowNs() - asked);
    }
  }
  std::sort(lease_ns->begin(), lease_ns->end());
  return absl::OkStatus();
}

double At(const std::vector<int64_t>& sorted, double part) {
  return static_cast<double>(sorted[static_cast<size_t>(part * double(sorted.size() - 1))]);
}

struct Filled {
  std::unique_ptr<Engine> engine;
  TensorId id;
};

absl::StatusOr<Filled> OpenFilled(const std::string& folder, uint64_t num_tiles) {
  const uint64_t state_bytes = num_tiles * kTileBytes;
  EngineOptions options;
  options.store = {folder};
  options.mode = OpenMode::kScratch;
  options.device_bytes = state_bytes / 10;
  options.pinned_bytes = state_bytes * 3 / 10;
  Filled filled;
  SPILLWAY_ASSIGN_OR_RETURN(filled.engine, Engine::Open(options));
  SPILLWAY_ASSIGN_OR_RETURN(
      filled.id, filled.engine->Register({.name = "state",
                                          .dtype = DType::kU8,
                                          .shape = {static_cast<int64_t>(num_tiles), kTileBytes},
                                          .tile_rows = 1}));
  for (uint64_t tile = 0; tile < num_tiles; ++tile) {
    SPILLWAY_ASSIGN_OR_RETURN(const Lease lease,
                              filled.engine->AcquireHost({filled.id, tile}, Access::kDiscard));
    lease.as<std::byte>()[0] = std::byte{1};
  }
  SPILLWAY_RETURN_IF_ERROR(filled.engine->EndStep());
  return filled;
}

absl::Status TimeLocks(const std::string& folder, uint64_t num_tiles, int steps) {
  const Interruptions machine = MeasureInterruptions();
  SPILLWAY_ASSIGN_OR_RETURN(const Filled filled, OpenFilled(folder, num_tiles));
  Engine* const engine = filled.engine.get();
  std::printf(
      "A second of a thread's CPU time has %.1f gaps over 200 us and %.2f over 5 ms without a "
      "lock.\n",
      machine.over_200us, machine.over_5ms);
  std::printf("%4s %8s %14s %9s %9s %6s %6s %8s %8s %11s %8s %8s %6s %8s %9s %9s\n", "step",
              "seconds", "EndStep (us)", "lease", "lease", "plans", "steps", "leases", "moved",
              "locks", "over", "of the", "over", "of the", "longest", "longest");
  std::printf("%4s %8s %8s %5s %9s %9s %6s %6s %8s %8s %11s %8s %8s %6s %8s %9s %9s\n", "", "",
              "wall", "cpu", "p50 (us)", "p99.9", "made", "taken", "pulled", "(MiB)", "held",
              "200us", "machine", "5ms", "machine", "cpu (us)", "wall (us)");
  for (int step = 1; step <= steps; ++step) {
    StepFigures figures;
    const EngineStats before = engine->Stats();
    figures.pulled_before = before.plan.pulled;
    figures.moved_before = MovedBytes(before);
    (void)TakeLockHolds();
    SPILLWAY_RETURN_IF_ERROR(Step(engine, filled.id, num_tiles, &figures));
    const LockHolds holds = TakeLockHolds();
    Print(step, figures, engine->Stats(), holds, machine);
    if (step == steps - 3) SPILLWAY_RETURN_IF_ERROR(engine->WaitForPlan());
  }
  return absl::OkStatus();
}

// Times leases in an engine whose first step has just ended: first while that step's plan is made,
// then after it.
absl::Status TimeResident(const std::string& folder, uint64_t num_tiles,
                          std::vector<int64_t>* planning, std::vector<int64_t>* without) {
  constexpr size_t kMost = 2'000'000;
  SPILLWAY_ASSIGN_OR_RETURN(const Filled filled, OpenFilled(folder, num_tiles));
  Engine* const engine = filled.engine.get();
  SPILLWAY_RETURN_IF_ERROR(engine->WaitForPlan());
  StepFigures figures;
  SPILLWAY_RETURN_IF_ERROR(Step(engine, filled.id, num_tiles, &figures));
  std::atomic<bool> is_made = false;
  std::thread waits([&] {
    (void)engine->WaitForPlan();
    is_made = true;
  });
  const absl::Status leased =
      LeaseResident(engine, filled.id, [&] { return is_made.load(); }, kMost, planning);
  waits.join();
  SPILLWAY_RETURN_IF_ERROR(leased);
  if (planning->empty()) return absl::InternalError("the plan was made before the first lease");
  return LeaseResident(engine, filled.id, [] { return false; }, planning->size(), without);
}

absl::Status CompareResident(const std::string& folder, uint64_t num_tiles, int rounds) {
  std::printf("\n%s\n",
              "resident leases  planning p50 (us)  p99.9   without p50 (us)  p99.9"
              "   ratio p50  p99.9");
  std::vector<double> p50, p999;
  for (int round = 0; round < rounds; ++round) {
    std::vector<int64_t> planning, without;
    SPILLWAY_RETURN_IF_ERROR(TimeResident(folder, num_tiles, &planning, &without));
    p50.push_back(At(planning, 0.5) / At(without, 0.5));
    p999.push_back(At(planning, 0.999) / At(without, 0.999));
    std::printf("%15zu %18.3f %6.2f %18.3f %6.2f %11.2f %6.2f\n", planning.size(),
                At(planning, 0.5) * 1e-3, At(planning, 0.999) * 1e-3, At(without, 0.5) * 1e-3,
                At(without, 0.999) * 1e-3, p50.back(), p999.back());
    std::fflush(stdout);
  }
  for (std::vector<double>* ratios : {&p50, &p999}) {
    std::sort(ratios->begin(), ratios->end());
    std::printf("%s: median %.2f (%.2f to %.2f)\n", ratios == &p50 ? "ratio p50" : "ratio p99.9",
                (*ratios)[ratios->size() / 2], ratios->front(), ratios->back());
  }
  return absl::OkStatus();
}

absl::Status Run(const std::string& folder, uint64_t num_tiles, int steps, int rounds) {
  SPILLWAY_RETURN_IF_ERROR(TimeLocks(folder, num_tiles, steps));
  return rounds > 0 ? CompareResident(folder, num_tiles, rounds) : absl::OkStatus();
}

}  // namespace
}  // namespace spillway::bench

int main(int argc, char** argv) {
  CLI::App app("How long locks are held with many tiles");
  std::string folder = "/tmp/spillway-lock-bench";
  uint64_t tiles = 100'000;
  int steps = 6, rounds = 5;
  app.add_option("--folder", folder, "Where the store is made");
  app.add_option("--tiles", tiles, "Tiles of 4 KiB")->check(CLI::Range(1'000, 10'000'000));
  app.add_option("--steps", steps, "Steps; before the last three it waits for the plan")
      ->check(CLI::Range(4, 1'000));
  app.add_option("--rounds", rounds, "Of leases while a plan is being made, and without")
      ->check(CLI::Range(0, 1'000));
  CLI11_PARSE(app, argc, argv);
  const absl::Status status = spillway::bench::Run(folder, tiles, steps, rounds);
  if (status.ok()) return 0;
  std::fprintf(stderr, "lock_bench: %s\n", std::string(status.message()).c_str());
  return 1;
}
