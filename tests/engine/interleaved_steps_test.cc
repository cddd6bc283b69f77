// SPDX-License-Identifier: Apache-2.0
//
// Threads that share a step. Each leases its own tiles in order, and the interleaving differs from
// step to step. The plan of the first step is still followed, for hardly more bytes than planned,
// and no thread waits for another.

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "spillway/engine.h"
#include "tests/exhaustive.h"
#include "tests/seed.h"
#include "tests/temp_folder.h"

namespace spillway {
namespace {

constexpr int kThreads = 4;
constexpr uint64_t kTilesOfThread = 60;
constexpr uint64_t kTiles = kThreads * kTilesOfThread;
constexpr int64_t kWords = 4096;  // words of a tile, 16 KiB
constexpr uint64_t kTileBytes = kWords * 4;
constexpr uint64_t kStateBytes = kTiles * kTileBytes;
constexpr size_t kMostHeld = 3;  // leases of one thread; all threads hold half of the device

uint64_t Moved(const EngineStats& stats) {
  return stats.nvme.read_bytes + stats.nvme.written_bytes + stats.pinned.read_bytes +
         stats.pinned.written_bytes;
}

class InterleavedSteps : public testing::Test {
 protected:
  void SetUp() override { OpenEngine(); }

  // Closes the engine if one is open, and opens one with an empty store.
  void OpenEngine() {
    engine_.reset();
    EngineOptions options;
    options.store = {folder_ / "store"};
    options.mode = OpenMode::kScratch;
    options.device_bytes = kStateBytes / 10;
    options.pinned_bytes = kStateBytes * 3 / 10;
    options.page_bytes = kTileBytes;
    options.calibration = Calibration::kKeep;
    auto engine = Engine::Open(options);
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
    const auto id = engine_->Register({.name = "state", .shape = {kTiles, kWords}, .tile_rows = 1});
    ASSERT_TRUE(id.ok()) << id.status();
    id_ = *id;
  }

  // Adds one to each word of a tile. Each word must equal the number of steps before.
  void Use(uint64_t tile, uint32_t steps_before, Lease* kept = nullptr) {
    auto lease = engine_->Acquire({id_, tile}, Access::kReadWrite);
    ASSERT_TRUE(lease.ok()) << lease.status();
    for (uint32_t& word : lease->as<uint32_t>()) {
      ASSERT_EQ(word, steps_before) << "tile " << tile;
      word = steps_before + 1;
    }
    if (kept != nullptr) *kept = *std::move(lease);
  }

  // What one thread does in a step: leases its tiles in order and ends each lease some leases
  // later.
  class Share {
   public:
    Share(InterleavedSteps* test, int thread, uint32_t step, uint64_t seed)
        : test_(*test),
          thread_(static_cast<uint64_t>(thread)),
          step_(step),
          random_(seed + thread_) {}
    void UseNext() {
      if (held_.size() == kMostHeld) held_.pop_front();
      held_.emplace_back();
      test_.Use(thread_ * kTilesOfThread + next_++, step_, &held_.back());
      while (!held_.empty() && random_() % 3 == 0) held_.pop_front();
    }
    void MayPause() {
      if (random_() % 4 != 0) return;
      std::this_thread::sleep_for(std::chrono::microseconds(random_() % 400));
    }

   private:
    InterleavedSteps& test_;
    const uint64_t thread_;
    const uint32_t step_;
    std::mt19937_64 random_;
    std::deque<Lease> held_;
    uint64_t next_ = 0;
  };

  void UseShare(int thread, uint32_t step, uint64_t seed) {
    Share share(this, thread, step, seed);
    for (uint64_t i = 0; i < kTilesOfThread && !HasFatalFailure(); ++i) {
      share.UseNext();
      share.MayPause();
    }
  }

  void Step(uint32_t step, uint64_t seed) {
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread)
      threads.emplace_back([=, this] { UseShare(thread, step, seed); });
    for (std::thread& thread : threads) thread.join();
  }

  test::TempFolder folder_;
  std::unique_ptr<Engine> engine_;
  TensorId id_;
};

TEST_F(InterleavedSteps, FollowThePlanForAFewMoreBytes) {
  const uint64_t seed = test::Seed();
  const uint32_t steps = IsExhaustive() ? 200 : 60 / SampleShare();
  constexpr uint32_t kBefore = 3;  // no plan, a plan made before tiles had bytes, the final plan
  uint64_t before = 0;
  for (uint32_t step = 0; step < kBefore + steps; ++step) {
    if (step == kBefore) before = Moved(engine_->Stats());
    Step(step, seed * 1000 + step);
    if (HasFatalFailure()) return;
    ASSERT_TRUE(engine_->EndStep().ok());
    ASSERT_TRUE(engine_->WaitForPlan().ok());
  }
  const EngineStats stats = engine_->Stats();
  const double planned = static_cast<double>(stats.plan.planned_bytes) * steps;
  const double moved = static_cast<double>(Moved(stats) - before);
  std::cout << stats.plan.plans << " plans, " << stats.plan.steps << " of " << kBefore + steps
            << " steps followed one, " << stats.plan.deviations << " left it, " << stats.plan.pulled
            << " of " << steps * kTiles << " leases were pulled; moved " << moved / planned
            << " of planned bytes, which are " << planned / steps / static_cast<double>(kStateBytes)
            << " of the state's\n";
  EXPECT_EQ(stats.plan.not_planned, "");
  EXPECT_EQ(stats.plan.deviations, 0u);
  EXPECT_GE(stats.plan.steps, steps - 1);
  EXPECT_GE(stats.plan.planned_bytes, kStateBytes / 2);
  EXPECT_LE(moved, 1.25 * planned);
}

// The plan for several threads leaves a reserve, so it keeps fewer tiles than the plan of a thread
// that takes and ends the same leases.
TEST_F(InterleavedSteps, HaveAPlanOfAtMostATenthMoreBytesThanOneThread) {
  const uint64_t seed = test::Seed();
  for (uint32_t step = 0; step < 3; ++step) {
    Step(step, seed * 1000 + step);
    if (HasFatalFailure()) return;
    ASSERT_TRUE(engine_->EndStep().ok());
    ASSERT_TRUE(engine_->WaitForPlan().ok());
  }
  const auto planned = static_cast<double>(engine_->Stats().plan.planned_bytes);
  OpenEngine();
  if (HasFatalFailure()) return;
  for (uint32_t step = 0; step < 3; ++step) {
    std::deque<Share> shares;
    for (int thread = 0; thread < kThreads; ++thread)
      shares.emplace_back(this, thread, step, seed * 1000 + step);
    for (uint64_t i = 0; i < kTilesOfThread; ++i) {
      for (Share& share : shares) share.UseNext();
      if (HasFatalFailure()) return;
    }
    shares.clear();
    ASSERT_TRUE(engine_->EndStep().ok());
    ASSERT_TRUE(engine_->WaitForPlan().ok());
  }
  const auto of_one_thread = static_cast<double>(engine_->Stats().plan.planned_bytes);
  std::cout << planned / of_one_thread << " times one thread's bytes\n";
  EXPECT_GT(planned, of_one_thread);  // else no reserve was left, and the limit shows nothing
  EXPECT_LE(planned, 1.10 * of_one_thread);
}

// Each thread's tiles come after those of the thread before it, later in the reverse order. The
// thread that is then first was last in the plan, and must not wait for any other.
TEST_F(InterleavedSteps, ComeToAnEndInAnOrderThatThePlanDoesNotHave) {
  for (uint32_t step = 0; step < 8; ++step) {
    std::barrier barrier(kThreads);
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        const int turn = step < 3 ? thread : kThreads - 1 - thread;
        for (int now = 0; now < kThreads; ++now) {
          if (now == turn) UseShare(thread, step, step);
          barrier.arrive_and_wait();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    if (HasFatalFailure()) return;
    ASSERT_TRUE(engine_->EndStep().ok());
    ASSERT_TRUE(engine_->WaitForPlan().ok());
  }
  const EngineStats stats = engine_->Stats();
  EXPECT_EQ(stats.plan.deviations, 0u);
  EXPECT_GT(stats.plan.pulled, 0u);
}

// A thread sleeps while it holds a lease, until the other threads have finished. The plan of the
// step has the release of that lease first.
TEST_F(InterleavedSteps, DoNotWaitForAThreadThatSleepsWithALease) {
  for (uint32_t step = 0; step < 6; ++step) {
    Lease slept_on;
    Use(0, step, &slept_on);
    if (step < 3) slept_on = Lease();
    std::thread others([&] {
      for (uint64_t tile = 1; tile < kTiles && !HasFatalFailure(); ++tile) Use(tile, step);
    });
    others.join();
    if (HasFatalFailure()) return;
    slept_on = Lease();
    ASSERT_TRUE(engine_->EndStep().ok());
    ASSERT_TRUE(engine_->WaitForPlan().ok());
  }
  EXPECT_EQ(engine_->Stats().plan.deviations, 0u);
}

}  // namespace
}  // namespace spillway
