// SPDX-License-Identifier: Apache-2.0
//
// Question: four threads share a step, and their interleaving differs from step to step. How many
// bytes does a step move, compared with its plan? At what rate does it move them, compared with
// threads that take their leases in the plan's order? Limits: at most 1.02 times the plan's bytes,
// at least 0.9 times the rate.
//
//   interleaved: each thread leases its own tiles in order, pauses at random, and ends each lease
//                after a random time
//   in turns:    the same, but all threads take their leases in one order, that of the planned step
//   one thread:  one thread takes all leases in that order; its plan reserves no room for threads
//                that drift apart
//
// Method: each has its own engine, on the same file system. A round is kSteps steps interleaved and
// kSteps in turns, and the order of the two alternates. A ratio is computed within its round.
// Medians and ranges over the rounds are reported. The holder of a lease changes one byte in every
// 4 KiB, so computing takes next to no time.
//
//   build/release/bin/threads_bench [--folder DIR] [--benchmark_out=FILE]

#include <benchmark/benchmark.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bench/engine/environment.h"
#include "spillway/engine.h"
#include "src/base/clock.h"
#include "src/base/status_macros.h"

namespace spillway::bench {
namespace {

constexpr int kThreads = 4;
constexpr uint64_t kTilesOfThread = 64;
constexpr uint64_t kTiles = kThreads * kTilesOfThread;
constexpr uint64_t kTileBytes = kMiB;
constexpr uint64_t kStateBytes = kTiles * kTileBytes;
constexpr size_t kMostHeld = 3;  // leases of a thread; those of all threads take half of the device
constexpr int kSteps = 3;        // in a round
// The steps before the rounds. They run on demand until a plan is made. The plan's first period
// also brings in what the plan expects in memory.
constexpr int kFirstSteps = 5;
constexpr int kRounds = 9;

enum class Order : uint8_t { kInterleaved, kInTurns, kOneThread };

class Program {
 public:
  static absl::StatusOr<std::unique_ptr<Program>> Create(const std::string& folder, Order order) {
    EngineOptions options;
    options.store = {folder};
    options.mode = OpenMode::kScratch;
    options.device_bytes = kStateBytes / 10;
    options.pinned_bytes = kStateBytes * 3 / 10;
    options.calibration = Calibration::kNow;
    auto program = std::make_unique<Program>();
    program->order_ = order;
    SPILLWAY_ASSIGN_OR_RETURN(program->engine_, Engine::Open(options));
    SPILLWAY_ASSIGN_OR_RETURN(program->id_,
                              program->engine_->Register({.name = "state",
                                                          .dtype = DType::kU8,
                                                          .shape = {kTiles, int64_t{kTileBytes}},
                                                          .tile_rows = 1}));
    return program;
  }

  absl::Status Step() {
    turn_ = 0;
    failed_ = false;
    std::vector<Share> shares(kThreads);
    for (uint64_t thread = 0; thread < kThreads; ++thread) {
      shares[thread].thread = thread;
      shares[thread].random.seed(static_cast<unsigned>(step_ * kThreads + thread + 1));
    }
    std::vector<std::thread> threads;
    for (Share& share : shares) {
      if (order_ == Order::kOneThread) break;
      threads.emplace_back([this, &share] {
        for (uint64_t i = 0; i < kTilesOfThread && !failed_; ++i) UseTile(share, i);
        share.held.clear();
      });
    }
    for (std::thread& thread : threads) thread.join();
    for (uint64_t turn = 0; order_ == Order::kOneThread && turn < kTiles && !failed_; ++turn)
      UseTile(shares[turn % kThreads], turn / kThreads);
    shares.clear();
    ++step_;
    SPILLWAY_RETURN_IF_ERROR(engine_->EndStep());
    SPILLWAY_RETURN_IF_ERROR(engine_->WaitForPlan());
    return failed_ ? absl::InternalError("a lease failed") : absl::OkStatus();
  }

  EngineStats Stats() const { return engine_->Stats(); }
  uint64_t MovedBytes() const {
    const EngineStats stats = Stats();
    return stats.nvme.read_bytes + stats.nvme.written_bytes + stats.pinned.read_bytes +
           stats.pinned.written_bytes;
  }

 private:
  struct Share {
    uint64_t thread = 0;
    std::minstd_rand random;
    std::deque<Lease> held;
  };

  void UseTile(Share& share, uint64_t i) {
    std::minstd_rand& random = share.random;
    if (random() % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(random() % 400));
    if (share.held.size() == kMostHeld) share.held.pop_front();
    while (order_ == Order::kInTurns && turn_ != i * kThreads + share.thread && !failed_)
      std::this_thread::yield();
    auto lease = engine_->Acquire({id_, share.thread * kTilesOfThread + i}, Access::kReadWrite);
    ++turn_;
    if (!lease.ok()) {
      failed_ = true;
      return;
    }
    const std::span<std::byte> bytes = lease->as<std::byte>();
    for (size_t at = 0; at < bytes.size(); at += 4096) bytes[at] ^= std::byte{1};
    share.held.push_back(*std::move(lease));
    while (!share.held.empty() && random() % 3 == 0) share.held.pop_front();
  }

  Order order_ = Order::kInterleaved;
  std::unique_ptr<Engine> engine_;
  TensorId id_;
  uint64_t step_ = 0;
  std::atomic<uint64_t> turn_ = 0;
  std::atomic<bool> failed_ = false;
};

struct Figure {
  std::vector<double> values;
  double Median() {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
  }
};

// Runs kSteps steps. Returns the bytes that they move per second.
absl::StatusOr<double> Rate(Program& program) {
  const uint64_t before = program.MovedBytes();
  const double begin = base::Now();
  for (int step = 0; step < kSteps; ++step) SPILLWAY_RETURN_IF_ERROR(program.Step());
  return static_cast<double>(program.MovedBytes() - before) / (base::Now() - begin);
}

absl::Status Run(benchmark::State& state, const std::string& folder) {
  SPILLWAY_ASSIGN_OR_RETURN(auto interleaved,
                            Program::Create(folder + "/interleaved", Order::kInterleaved));
  SPILLWAY_ASSIGN_OR_RETURN(auto in_turns, Program::Create(folder + "/turns", Order::kInTurns));
  uint64_t planned_for_one = 0;
  {
    SPILLWAY_ASSIGN_OR_RETURN(auto alone, Program::Create(folder + "/alone", Order::kOneThread));
    for (int step = 0; step < 2; ++step) SPILLWAY_RETURN_IF_ERROR(alone->Step());
    planned_for_one = alone->Stats().plan.planned_bytes;
  }
  for (int step = 0; step < kFirstSteps; ++step) {
    SPILLWAY_RETURN_IF_ERROR(interleaved->Step());
    SPILLWAY_RETURN_IF_ERROR(in_turns->Step());
  }
  Figure share, rate;
  const EngineStats before = interleaved->Stats();
  const uint64_t moved_before = interleaved->MovedBytes();
  int round = 0;
  for (auto _ : state) {
    const bool swaps = round++ % 2 != 0;
    SPILLWAY_ASSIGN_OR_RETURN(const double first, Rate(swaps ? *in_turns : *interleaved));
    SPILLWAY_ASSIGN_OR_RETURN(const double second, Rate(swaps ? *interleaved : *in_turns));
    rate.values.push_back(swaps ? second : first);
    share.values.push_back(swaps ? second / first : first / second);
  }
  const EngineStats after = interleaved->Stats();
  const double steps = round * kSteps;
  state.counters["rate/in_turns"] = share.Median();
  state.counters["least"] = share.values.front();
  state.counters["most"] = share.values.back();
  state.counters["MB_per_s"] = rate.Median() / 1e6;
  state.counters["bytes/planned"] = static_cast<double>(interleaved->MovedBytes() - moved_before) /
                                    steps / static_cast<double>(after.plan.planned_bytes);
  state.counters["planned/one_thread's"] =
      static_cast<double>(after.plan.planned_bytes) / static_cast<double>(planned_for_one);
  state.counters["followed"] = static_cast<double>(after.plan.steps - before.plan.steps) / steps;
  state.counters["pulled"] =
      static_cast<double>(after.plan.pulled - before.plan.pulled) / steps / kTiles;
  return absl::OkStatus();
}

}  // namespace
}  // namespace spillway::bench

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  CLI::App app("Threads that share a step.");
  std::string folder = ".";
  app.add_option("--folder", folder, "Where the stores are made");
  CLI11_PARSE(app, argc, argv);
  const std::string own = folder + "/threads-bench";
  std::filesystem::create_directories(own);
  spillway::bench::DescribeMachine(own);
  benchmark::RegisterBenchmark("Threads",
                               [&](benchmark::State& state) {
                                 const absl::Status status = spillway::bench::Run(state, own);
                                 if (!status.ok()) state.SkipWithError(status.ToString().c_str());
                               })
      ->Iterations(spillway::bench::kRounds)
      ->Unit(benchmark::kMillisecond)
      ->UseRealTime();
  benchmark::RunSpecifiedBenchmarks();
  std::filesystem::remove_all(own);
}
