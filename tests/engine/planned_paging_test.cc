// SPDX-License-Identifier: Apache-2.0
//
// Steps that repeat, through the public engine: random steps over tiles with known values, followed
// by plan under every policy, with steps that differ, commits, evictions and waiting callers in
// between. Every lease must find what was written last; a step that repeats must move what its plan
// foretold, and must not be taken for another.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "spillway/engine.h"
#include "tests/trainer/temp_folder.h"

namespace spillway {
namespace {

constexpr int kTensors = 6;
constexpr int kTiles = 8;
constexpr int64_t kRowBytes = 4096;

// What a step does with a tile: leases it, looks at it or writes it, lets go.
struct Action {
  int tensor = 0;
  uint64_t tile = 0;
  Tier tier = Tier::kDevice;
  Access access = Access::kRead;
  bool held = false;     // the lease ends after the next action's
  bool discard = false;  // afterwards, where the tensor is transient
};

bool IsTransient(int tensor) { return tensor >= kTensors - 2; }

class Trainer {
 public:
  Trainer(const std::string& folder, Policy policy, uint64_t seed) : random_(seed) {
    EngineOptions options;
    options.store = {folder};
    options.mode = OpenMode::kScratch;
    options.device_bytes = 96 * kKiB;
    options.pinned_bytes = 192 * kKiB;
    options.page_bytes = 4 * kKiB;
    options.policy = policy;
    auto engine = Engine::Open(options);
    EXPECT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
    for (int tensor = 0; tensor < kTensors; ++tensor) {
      TensorSpec spec;
      spec.name = "t" + std::to_string(tensor);
      rows_[tensor] = 1 + tensor % 4;
      spec.shape = {rows_[tensor] * kTiles, kRowBytes / 4};
      spec.tile_rows = rows_[tensor];
      spec.transient = IsTransient(tensor);
      const auto id = engine_->Register(spec);
      EXPECT_TRUE(id.ok()) << id.status();
      ids_[tensor] = *id;
    }
  }

  std::vector<Action> RandomStep(size_t length) {
    std::vector<Action> step(length);
    for (Action& action : step) {
      action.tensor = Below(kTensors);
      action.tile = static_cast<uint64_t>(Below(kTiles));
      action.tier = Below(3) == 0 ? Tier::kPinned : Tier::kDevice;
      action.access = static_cast<Access>(Below(4));
      action.held = Below(3) == 0;
      action.discard = IsTransient(action.tensor) && Below(3) == 0;
    }
    return step;
  }

  // Does the step, from `first` on, on a stream now and then.
  void Run(const std::vector<Action>& step, size_t first = 0) {
    Lease held;
    std::pair<int, uint64_t> holds{-1, 0};
    std::unique_ptr<Stream> stream = *engine_->CreateStream();
    for (size_t i = first; i < step.size(); ++i) {
      const Action& action = step[i];
      // What is held may not be leased once more by the same thread.
      if (holds == std::pair{action.tensor, action.tile}) held.Release();
      const bool on_stream = action.tier == Tier::kDevice && i % 5 == 0;
      const TileRef ref{ids_[action.tensor], action.tile};
      auto lease = action.tier == Tier::kPinned
                       ? engine_->AcquireHost(ref, action.access)
                       : engine_->Acquire(ref, action.access, on_stream ? stream.get() : nullptr);
      ASSERT_TRUE(lease.ok()) << lease.status();
      if (on_stream) {
        ASSERT_TRUE(stream->Synchronize().ok());
      }
      Use(action, *lease);
      held.Release();
      holds = {-1, 0};
      if (action.held && !action.discard) {
        held = *std::move(lease);
        holds = {action.tensor, action.tile};
        continue;
      }
      lease->Release();
      if (on_stream) {
        ASSERT_TRUE(stream->Synchronize().ok());
      }
      if (!action.discard) continue;
      ASSERT_TRUE(engine_->Discard(ref).ok());
      value_[action.tensor][action.tile] = 0;
    }
    held.Release();
    ASSERT_TRUE(stream->Synchronize().ok());
  }

  Engine& engine() { return *engine_; }
  int Below(int limit) { return static_cast<int>(random_() % static_cast<uint64_t>(limit)); }
  TileRef Ref(int tensor, uint64_t tile) const { return {ids_[tensor], tile}; }

 private:
  // Every word of a tile has its version and its place; a tile without bytes has zeros.
  void Use(const Action& action, const Lease& lease) {
    const std::span<uint64_t> words = lease.as<uint64_t>();
    uint64_t& version = value_[action.tensor][action.tile];
    if (action.access != Access::kDiscard) {
      for (size_t i = 0; i < words.size(); ++i) {
        ASSERT_EQ(words[i], version == 0 ? 0 : version * 1000003 + i)
            << "tensor " << action.tensor << " tile " << action.tile << " word " << i;
      }
    }
    if (!Writes(action.access)) return;
    version = ++versions_;
    for (size_t i = 0; i < words.size(); ++i) words[i] = version * 1000003 + i;
  }

  std::mt19937_64 random_;
  std::unique_ptr<Engine> engine_;
  TensorId ids_[kTensors];
  int64_t rows_[kTensors];
  uint64_t value_[kTensors][kTiles] = {};
  uint64_t versions_ = 0;
};

class PlannedPaging : public ::testing::TestWithParam<Policy> {
 protected:
  static uint64_t Seed() {
    const uint64_t seed = std::random_device{}();
    std::printf("seed %llu\n", static_cast<unsigned long long>(seed));
    return seed;
  }
  test::TempFolder folder_;
};

TEST_P(PlannedPaging, ARepeatedStepMovesWhatItsPlanForetold) {
  const uint64_t seed = Seed();
  Trainer trainer(folder_ / "store", GetParam(), seed);
  const std::vector<Action> step = trainer.RandomStep(120);
  for (int i = 0; i < 8; ++i) {
    trainer.Run(step);
    if (HasFatalFailure()) return;
    ASSERT_TRUE(trainer.engine().EndStep().ok());
  }
  const PlanStats plan = trainer.engine().Stats().plan;
  EXPECT_EQ(plan.not_planned, "");
  EXPECT_EQ(plan.plans > 0, GetParam() != Policy::kOnDemand);
  const uint64_t moved = plan.nvme.read_bytes + plan.nvme.written_bytes + plan.pinned.read_bytes +
                         plan.pinned.written_bytes;
  EXPECT_LE(moved, plan.planned_bytes);
  EXPECT_LE(plan.bytes_bound, plan.planned_bytes);
  EXPECT_EQ(plan.time_bound_seconds > 0, GetParam() != Policy::kOnDemand);
  EXPECT_GE(plan.time_bound_seconds, std::max(plan.compute_seconds, plan.transfer_seconds));
  // A cache also writes what is discarded before anyone reads it, and may come too late for that.
  if (GetParam() != Policy::kPlanned) return;
  // The first step has no plan; the second's does not know which tiles have bytes after it.
  EXPECT_GE(plan.steps, 5u);
  EXPECT_EQ(plan.deviations, 0u);
  EXPECT_EQ(moved, plan.planned_bytes);
}

TEST_P(PlannedPaging, WhateverElseHappensEveryLeaseFindsTheNewestBytes) {
  const uint64_t seed = Seed();
  Trainer trainer(folder_ / "store", GetParam(), seed);
  const std::vector<Action> step = trainer.RandomStep(80);
  const std::vector<Action> evaluation = trainer.RandomStep(30);
  for (int i = 0; i < 40; ++i) {
    switch (trainer.Below(6)) {
      case 0: trainer.Run(evaluation); break;
      case 1: {  // a step that leaves the trace somewhere
        std::vector<Action> other = step;
        const auto at = static_cast<ptrdiff_t>(trainer.Below(static_cast<int>(step.size())));
        if (trainer.Below(2) == 0) {
          other.resize(static_cast<size_t>(at));
        } else {
          other.insert(other.begin() + at, trainer.RandomStep(1).front());
        }
        trainer.Run(other);
        break;
      }
      case 2:
        (void)trainer.engine().Evict(trainer.Ref(trainer.Below(kTensors), 0));
        trainer.Run(step);
        break;
      default: trainer.Run(step);
    }
    if (HasFatalFailure()) return;
    if (trainer.Below(8) != 0) {
      ASSERT_TRUE(trainer.engine().EndStep().ok());
    }
    if (trainer.Below(4) == 0) {
      ASSERT_TRUE(trainer.engine().Commit("state").ok());
    }
  }
}

// Whoever never ends a step pays no memory for it.
TEST(PlannedPagingAlone, AStepTooLongToWriteDownIsNotPlannedAndSaysSo) {
  const test::TempFolder folder;
  Trainer trainer(folder / "store", Policy::kPlanned, /*seed=*/1);
  const std::vector<Action> step = trainer.RandomStep(200);
  for (int i = 0; i < 60; ++i) trainer.Run(step);
  ASSERT_TRUE(trainer.engine().EndStep().ok());
  const PlanStats plan = trainer.engine().Stats().plan;
  EXPECT_EQ(plan.plans, 0u);
  EXPECT_NE(plan.not_planned.find("call EndStep after each step"), std::string::npos)
      << plan.not_planned;
}

std::string PolicyName(const ::testing::TestParamInfo<Policy>& policy) {
  static constexpr const char* kNames[] = {"Planned", "Lru", "Fifo", "Prefix", "None", "OnDemand"};
  return kNames[static_cast<size_t>(policy.param)];
}

INSTANTIATE_TEST_SUITE_P(Policies, PlannedPaging,
                         ::testing::Values(Policy::kPlanned, Policy::kLru, Policy::kFifo,
                                           Policy::kPrefix, Policy::kNone, Policy::kOnDemand),
                         PolicyName);

}  // namespace
}  // namespace spillway
