// SPDX-License-Identifier: Apache-2.0

#include "src/engine/plan_follower.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

namespace spillway::engine {
namespace {

constexpr plan::TileIndex kDirty = 0, kClean = 1;

// One tile is written and three are read; nothing is kept from one use to the next.
std::shared_ptr<const StepPlan> FourTilesInTwoFrames() {
  plan::TraceRecorder recorder;
  for (int i = 0; i < 4; ++i) recorder.AddTile({.size_bytes = 100, .stored = true});
  recorder.Begin(0);
  for (plan::TileIndex tile = 0; tile < 4; ++tile) {
    const Access access = tile == kDirty ? Access::kReadWrite : Access::kRead;
    recorder.Acquire(tile, Tier::kPinned, access, 0, 0);
    recorder.Release(tile, Tier::kPinned, access, 0);
  }
  plan::PlanOptions options;
  options.pinned_bytes = 200;
  options.frame_alignment = 1;
  options.policy = plan::Policy::kNone;
  StepPlan step{.trace = recorder.End()};
  auto made = plan::MakePlan(step.trace, options);
  EXPECT_TRUE(made.ok()) << made.status();
  step.plan = *std::move(made);
  return std::make_shared<const StepPlan>(std::move(step));
}

void ComesAndGoes(PlanFollower& follower, const plan::TraceEvent& event) {
  if (event.kind == plan::TraceEvent::Kind::kRelease) {
    follower.ReleaseAsked(event.tile);
    follower.Released(event.tile);
  } else {
    EXPECT_TRUE(follower.Ask(event));
    follower.Happened(event.tile);
  }
}

// Carries out what may be, but ends no write.
class Carrier {
 public:
  explicit Carrier(const std::shared_ptr<const StepPlan>& step) : follower_(step) {}

  void Run() {
    while (Move() || Lease()) {
    }
  }
  void EndWrite() { follower_.End(write_.value()); }

  const std::set<plan::TileIndex>& dropped() const { return dropped_; }
  uint64_t events() const { return events_; }

 private:
  bool Move() {
    if (const auto op = follower_.TakeFree()) {
      if (follower_.OpAt(*op).kind == plan::Transfer::kDrop)
        dropped_.insert(follower_.OpAt(*op).tile);
      follower_.End(*op);
      return true;
    }
    if (const auto op = follower_.Take(plan::Transfer::kRead)) {
      follower_.Begin(*op);
      follower_.End(*op);
      return true;
    }
    const auto op = write_ ? std::nullopt : follower_.Take(plan::Transfer::kWrite);
    if (op) follower_.Begin(*op);
    if (op) write_ = op;
    return op.has_value();
  }
  bool Lease() {
    const auto& events = follower_.step()->trace.events;
    if (events_ == events.size()) return false;
    const plan::TraceEvent& next = events[events_];
    // Each tile is used once.
    const bool is_use = next.kind != plan::TraceEvent::Kind::kRelease;
    if (is_use && !follower_.OpsBeforeAreOver(next.tile, 0)) return false;
    ComesAndGoes(follower_, next);
    ++events_;
    return true;
  }

  PlanFollower follower_;
  std::set<plan::TileIndex> dropped_;
  uint64_t events_ = 0;
  std::optional<PlanFollower::Count> write_;
};

TEST(PlanFollower, WhatIsCleanLeavesBeforeAWriteThatBeganEarlierHasEnded) {
  const auto step = FourTilesInTwoFrames();
  ASSERT_EQ(step->plan.bytes[plan::Transfer::kWrite], 100u);
  Carrier carrier(step);
  carrier.Run();
  EXPECT_EQ(carrier.dropped().count(kDirty), 0u);
  EXPECT_EQ(carrier.dropped().count(kClean), 1u);
  carrier.EndWrite();
  carrier.Run();
  EXPECT_EQ(carrier.dropped().size(), 4u);
  EXPECT_EQ(carrier.events(), step->trace.events.size());
}

std::shared_ptr<const StepPlan> PlanOf(const plan::Trace& trace, uint64_t pinned_bytes) {
  StepPlan step{.trace = trace};
  auto made = plan::MakePlan(step.trace, {.pinned_bytes = pinned_bytes,
                                          .frame_alignment = 1,
                                          .device_lookahead_bytes = 0,
                                          .pinned_lookahead_bytes = 0});
  EXPECT_TRUE(made.ok()) << made.status();
  step.plan = *std::move(made);
  return std::make_shared<const StepPlan>(std::move(step));
}

using Leases = std::vector<std::pair<plan::TileIndex, Access>>;

// Two tiles of 100 bytes that are leased in pinned memory in turn.
plan::Trace TraceOf(const Leases& leases) {
  plan::TraceRecorder recorder;
  for (int i = 0; i < 2; ++i) recorder.AddTile({.size_bytes = 100, .stored = true});
  recorder.Begin(0);
  for (const auto& [tile, access] : leases) {
    recorder.Acquire(tile, Tier::kPinned, access, 0, 0);
    recorder.Release(tile, Tier::kPinned, access, 0);
  }
  return recorder.End();
}

// Does all that may be done.
void CarryOut(PlanFollower& follower) {
  for (bool progress = true; progress;) {
    progress = false;
    for (const plan::Transfer link : {plan::Transfer::kRead, plan::Transfer::kWrite}) {
      while (const auto op = follower.Take(link)) {
        follower.End(*op);
        progress = true;
      }
    }
    while (const auto op = follower.TakeFree()) {
      follower.End(*op);
      progress = true;
    }
  }
}

// Which of the releases are followed by nothing but a read, in each of two steps.
std::vector<bool> ReadNext(const Leases& leases, uint64_t pinned_bytes) {
  const plan::Trace trace = TraceOf(leases);
  PlanFollower follower(PlanOf(trace, pinned_bytes));
  std::vector<bool> read_next;
  for (int step = 0; step < 2; ++step) {
    for (size_t i = 0; i < leases.size(); ++i) {
      CarryOut(follower);
      ComesAndGoes(follower, trace.events[2 * i]);
      EXPECT_TRUE(follower.OpsBeforeAreOver(leases[i].first, 0));
      ComesAndGoes(follower, trace.events[2 * i + 1]);
      const bool is_read_next = follower.IsReadNext(leases[i].first, Tier::kPinned);
      if (step == 0) read_next.push_back(is_read_next);
      EXPECT_EQ(is_read_next, read_next[i]) << "step " << step;
    }
    EXPECT_TRUE(follower.EndStep());
  }
  return read_next;
}

TEST(PlanFollower, KnowsWhereNothingIsDoneWithATileBeforeItsNextRead) {
  constexpr auto kRead = Access::kRead, kWrite = Access::kReadWrite;
  using Expected = std::vector<bool>;
  EXPECT_EQ(ReadNext({{0, kRead}, {1, kRead}, {0, kRead}}, 200), Expected({true, true, true}));
  EXPECT_EQ(ReadNext({{0, kRead}, {0, kRead}, {1, kRead}}, 100), Expected({true, false, false}))
      << "there is one frame, so each leaves for the other";
  const Expected written = ReadNext({{0, kRead}, {0, kWrite}, {0, kRead}, {1, kRead}}, 200);
  EXPECT_FALSE(written[0]) << "a writer comes next";
  EXPECT_TRUE(written[2]);
}

// Tiles of other threads may come in any order, and readers may overlap.
TEST(PlanFollower, OnlyTheOrderOfATilesOwnUsesCounts) {
  constexpr auto kRead = Access::kRead;
  const plan::Trace trace = TraceOf({{0, kRead}, {0, kRead}, {1, kRead}});
  PlanFollower follower(PlanOf(trace, 200));
  for (const size_t event : {4, 0, 2, 5, 1, 3}) ComesAndGoes(follower, trace.events[event]);
  EXPECT_TRUE(follower.EndStep());
  for (const size_t event : {0, 1, 4, 5}) ComesAndGoes(follower, trace.events[event]);
  EXPECT_FALSE(follower.EndStep()) << "tile 0 was used once only";
}

TEST(PlanFollower, AUseThatIsNotPlannedIsExtra) {
  const plan::Trace trace = TraceOf({{0, Access::kRead}, {1, Access::kRead}});
  PlanFollower follower(PlanOf(trace, 200));
  ComesAndGoes(follower, trace.events[0]);
  ComesAndGoes(follower, trace.events[1]);
  EXPECT_FALSE(follower.Ask(trace.events[0])) << "a second use in one step";
  EXPECT_TRUE(follower.has_strayed(0));
  plan::TraceEvent written = trace.events[2];
  written.access = Access::kReadWrite;
  EXPECT_FALSE(follower.Ask(written));
  EXPECT_EQ(follower.extra_in_step(), 2u);
  EXPECT_EQ(follower.asked_in_step(), 1u);
  EXPECT_FALSE(follower.EndStep());
}

// Tiles 0 and 1 share one frame. Whoever wants tile 1 while tile 0 has not been used need not wait
// for that.
TEST(PlanFollower, AUseWaitsForTransfersAndNotForAnotherCaller) {
  const plan::Trace trace = TraceOf({{0, Access::kRead}, {1, Access::kRead}});
  PlanFollower follower(PlanOf(trace, 100));
  CarryOut(follower);
  const auto use = follower.Ask(trace.events[2]);
  ASSERT_TRUE(use);
  EXPECT_FALSE(follower.OpsBeforeAreOver(1, *use));
  EXPECT_FALSE(follower.MayWait(1, *use));
  ComesAndGoes(follower, trace.events[0]);
  EXPECT_FALSE(follower.MayWait(1, *use)) << "tile 0 is leased";
  ComesAndGoes(follower, trace.events[1]);
  EXPECT_TRUE(follower.MayWait(1, *use));
  CarryOut(follower);
  EXPECT_TRUE(follower.OpsBeforeAreOver(1, *use));
}

TEST(PlanFollower, WhatIsSkippedCountsAsOver) {
  const plan::Trace trace = TraceOf({{0, Access::kRead}, {1, Access::kRead}});
  PlanFollower follower(PlanOf(trace, 100));
  for (int step = 0; step < 3; ++step) {
    CarryOut(follower);
    const auto use = follower.Ask(trace.events[2]);
    ASSERT_TRUE(use);
    follower.Skip(1, *use);
    EXPECT_TRUE(follower.OpsBeforeAreOver(1, *use));
    EXPECT_EQ(follower.PlannedAt(1, Tier::kPinned), 0u);
    follower.Happened(1);
    for (const size_t event : {3, 0, 1}) ComesAndGoes(follower, trace.events[event]);
    EXPECT_TRUE(follower.EndStep());
  }
  CarryOut(follower);
  EXPECT_TRUE(follower.TakeMoved());
}

}  // namespace
}  // namespace spillway::engine
