// SPDX-License-Identifier: Apache-2.0
//
// Planned paging under faults and disturbances. A round has steps that repeat, vary and are cut
// short, under random policies, budgets, page sizes and I/O engines. Requests are late or fail,
// another thread leases tiles that are in no plan, tiles are evicted, and commits come in the
// middle of steps. Every lease must find the last value written, and so must a reader that opens
// the store again.
//
// Each round has its own seed (tests/seed.h). The `slow` run goes on for SPILLWAY_TEST_SECONDS
// (default: 600).

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "io/faulty_io_engine.h"
#include "spillway/engine.h"
#include "tests/engine/faulty_machine.h"
#include "tests/engine/random_steps.h"
#include "tests/exhaustive.h"
#include "tests/io/io_uring_here.h"
#include "tests/plan/policies.h"
#include "tests/seed.h"
#include "tests/temp_folder.h"

namespace spillway::engine {
namespace {

using io::Fault;

constexpr int kSampleRounds = 8;
constexpr int kStepsOfRound = 30;
// The number of failures after which the disk recovers, and after which a call is given up.
constexpr int kPatience = 4;
constexpr int kLastTry = 12;

// Counts of what the rounds met. A round that met nothing shows nothing.
struct Met {
  uint64_t rounds = 0;
  uint64_t planned_steps = 0;
  uint64_t deviations = 0;
  uint64_t faults = 0;
  uint64_t failed_calls = 0;
};

class Random {
 public:
  explicit Random(uint64_t seed) : random_(seed) {}
  uint64_t Below(uint64_t limit) { return random_() % limit; }
  template <typename T>
  T OneOf(std::initializer_list<T> values) {
    return values.begin()[Below(values.size())];
  }
  uint64_t operator()() { return random_(); }

 private:
  std::mt19937_64 random_;
};

EngineOptions RandomOptions(Random& random, const std::string& folder) {
  EngineOptions options;
  options.store = {folder + "/a"};
  if (random.Below(4) == 0) options.store.push_back(folder + "/b");
  options.mode = OpenMode::kOpenOrCreate;
  options.device_bytes = (64 + 4 * random.Below(48)) * kKiB;
  options.pinned_bytes = (96 + 4 * random.Below(96)) * kKiB;
  options.page_bytes = random.OneOf<uint64_t>({4, 8, 16}) * kKiB;
  options.plan_steps = random.Below(8) != 0;
  const bool uring = io::CanRun(IoKind::kUring) && random.Below(2) == 0;
  options.io = uring ? IoKind::kUring : IoKind::kPosix;
  options.calibration = Calibration::kKeep;
  return options;
}

// Injects random delays, short transfers, retries below the I/O engine's interface and, now and
// then, failures.
void InjectSome(Random& random, io::FaultyIoEngine* disk) {
  constexpr Fault::Kind kKinds[] = {
      Fault::Kind::kDelay,  Fault::Kind::kDelay, Fault::Kind::kDelay,   Fault::Kind::kDelay,
      Fault::Kind::kShort,  Fault::Kind::kAgain, Fault::Kind::kBitFlip, Fault::Kind::kEio,
      Fault::Kind::kEnospc, Fault::Kind::kTorn};
  disk->Clear();
  const double probability = random.OneOf({0.0, 0.02, 0.2});
  for (Fault fault : io::RandomFaults(random(), kKinds, /*num_requests=*/200, probability)) {
    fault.delay = absl::Microseconds(static_cast<int64_t>(random.Below(3000)));
    disk->Inject(fault);
  }
}

// Leases tiles that are in no step's trace at random moments, and checks their values.
class Visitor {
 public:
  explicit Visitor(Engine* engine) : engine_(*engine) {
    const auto id = engine_.Register({.name = "visited", .shape = {kTiles, 1024}, .tile_rows = 1});
    EXPECT_TRUE(id.ok()) << id.status();
    id_ = *id;
  }
  ~Visitor() { Leave(); }
  Visitor(const Visitor&) = delete;
  Visitor& operator=(const Visitor&) = delete;

  // Writes the values that Look expects. REQUIRES: the thread that Come starts is not running.
  absl::Status Furnish(uint64_t tile) {
    const auto lease = engine_.AcquireHost({id_, tile}, Access::kDiscard);
    if (!lease.ok()) return lease.status();
    for (uint32_t& word : lease->as<uint32_t>()) word = 7 + static_cast<uint32_t>(tile);
    return absl::OkStatus();
  }

  void Come(uint64_t seed) {
    leaves_ = false;
    thread_ = std::thread([this, seed] {
      Random random(seed);
      while (!leaves_) {
        Look(random.Below(kTiles), random.Below(2) == 0);
        std::this_thread::sleep_for(std::chrono::microseconds(random.Below(2000)));
      }
    });
  }
  void Leave() {
    leaves_ = true;
    if (thread_.joinable()) thread_.join();
  }

 private:
  // Ignores a failed lease, because the steps handle disk failures. Bytes that are there must be
  // right.
  void Look(uint64_t tile, bool on_host) {
    const TileRef ref{id_, tile};
    const auto lease =
        on_host ? engine_.AcquireHost(ref, Access::kRead) : engine_.Acquire(ref, Access::kRead);
    if (!lease.ok()) return;
    for (const uint32_t word : lease->as<uint32_t>()) EXPECT_EQ(word, 7 + tile);
  }

  Engine& engine_;
  TensorId id_;
  std::atomic<bool> leaves_ = false;
  std::thread thread_;
};

class Round {
 public:
  Round(uint64_t seed, Met* met) : seed_(seed), random_(seed), met_(*met) {}

  void Run() {
    const test::TempFolder folder(test::FastPlace());
    const EngineOptions options = RandomOptions(random_, folder.path());
    using plan::Policy;
    const Policy policy =
        random_.OneOf({Policy::kPlanned, Policy::kPlanned, Policy::kPlanned, Policy::kLru,
                       Policy::kFifo, Policy::kPrefix, Policy::kNone});
    std::cout << test::SeedLine(seed_) << " policy "
              << (options.plan_steps ? plan::Name(policy) : "demand") << ", device "
              << options.device_bytes / kKiB << " KiB, pinned " << options.pinned_bytes / kKiB
              << " KiB, pages of " << options.page_bytes / kKiB << " KiB, "
              << (options.io == IoKind::kUring ? "uring" : "posix") << std::endl;
    {
      auto machine = OpenMachine(options, seed_, {}, FunctionOf(policy));
      ASSERT_TRUE(machine.ok()) << machine.status();
      TrainIn(*machine);
      if (::testing::Test::HasFailure()) return;
    }
    auto machine = OpenMachine(options, seed_, {}, FunctionOf(policy));
    ASSERT_TRUE(machine.ok()) << machine.status();
    RandomSteps reopened(machine->engine.get(), seed_, committed_);
    reopened.CheckAll();
  }

 private:
  void TrainIn(Machine& machine) {
    Engine& engine = *machine.engine;
    RandomSteps steps(&engine, random_());
    steps.set_try_again([&](const absl::Status& status, int tries) {
      ++met_.failed_calls;
      // These are the errors that a failing disk may cause. Data loss is reported if a read
      // returned wrong bits twice.
      if (!absl::IsUnavailable(status) && !absl::IsResourceExhausted(status) &&
          !absl::IsDataLoss(status)) {
        return false;
      }
      if (tries >= kPatience) machine.disk->Clear();
      return tries < kLastTry;
    });
    Visitor visitor(&engine);
    for (uint64_t tile = 0; tile < kTiles; ++tile) {
      ASSERT_TRUE(steps.Do([&] { return visitor.Furnish(tile); }).ok());
    }
    const Step step = steps.MakeStep(40 + random_.Below(60));
    const Step evaluation = steps.MakeStep(1 + random_.Below(30));
    const bool calm = random_.Below(4) == 0;  // no faults, so the plan is followed for long
    for (int i = 0; i < kStepsOfRound; ++i) {
      if (!calm) InjectSome(random_, machine.disk);
      OneStep(steps, engine, step, evaluation, calm, visitor);
      if (::testing::Test::HasFailure()) return;
    }
    machine.disk->Clear();
    Commit(steps, engine);
    steps.CheckAll();
    const EngineStats stats = engine.Stats();
    met_.planned_steps += stats.plan.steps;
    met_.deviations += stats.plan.deviations;
    met_.faults += machine.disk->faults_met();
    ++met_.rounds;
  }

  void OneStep(RandomSteps& steps, Engine& engine, const Step& step, const Step& evaluation,
               bool calm, Visitor& visitor) {
    const bool visited = !calm && random_.Below(8) == 0;
    const auto between = [&] {
      if (random_.Below(40) == 0) std::this_thread::sleep_for(std::chrono::microseconds(300));
      if (!calm && !visited && random_.Below(300) == 0) Commit(steps, engine);
    };
    if (visited) visitor.Come(random_());
    switch (random_.Below(calm ? 40 : 8)) {
      case 0: steps.Run(evaluation, between); break;
      case 1: steps.Run(steps.Vary(step), between); break;
      case 2:
        (void)engine.Evict(steps.Ref(static_cast<int>(random_.Below(kTensors)), 0));
        steps.Run(step, between);
        break;
      default: steps.Run(step, between);
    }
    visitor.Leave();  // its leases would defer a plan in EndStep and make Commit fail
    if (::testing::Test::HasFatalFailure()) return;
    if (calm || random_.Below(8) != 0) (void)steps.Do([&] { return engine.EndStep(); });
    if (calm || random_.Below(2) != 0) (void)engine.WaitForPlan();
    if (random_.Below(calm ? 20 : 6) == 0) Commit(steps, engine);
  }

  void Commit(RandomSteps& steps, Engine& engine) {
    if (steps.Do([&] { return engine.Commit("state"); }).ok()) committed_ = steps.values();
  }

  const uint64_t seed_;
  Random random_;
  Met& met_;
  RandomSteps::Values committed_ = {};
};

std::chrono::seconds SecondsToGoOn() {
  if (!IsExhaustive()) return std::chrono::seconds(0);
  const char* const given = std::getenv("SPILLWAY_TEST_SECONDS");
  return std::chrono::seconds(given != nullptr ? std::strtoll(given, nullptr, 10) : 600);
}

TEST(PlannedRandom, EveryLeaseFindsTheNewestBytesWhateverGoesWrong) {
  const auto end = std::chrono::steady_clock::now() + SecondsToGoOn();
  Met met;
  for (uint64_t seed = test::Seed();
       met.rounds < kSampleRounds || std::chrono::steady_clock::now() < end; ++seed) {
    SCOPED_TRACE(test::SeedLine(seed));
    Round(seed, &met).Run();
    if (HasFailure()) return;
  }
  std::cout << met.rounds << " rounds: " << met.planned_steps << " steps followed a plan, "
            << met.deviations << " left it, " << met.faults << " faults, " << met.failed_calls
            << " calls failed and were made again\n";
  EXPECT_GT(met.planned_steps, 0u);
  EXPECT_GT(met.deviations, 0u);
  EXPECT_GT(met.faults, 0u);
}

}  // namespace
}  // namespace spillway::engine
