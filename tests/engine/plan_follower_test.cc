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
      if (follower_.OpAt(*op).kind == plan::Op::Kind::kDrop)
        dropped_.insert(follower_.OpAt(*op).tile);
      follower_.End(*op);
      return true;
    }
    if (const auto op = follower_.Next(plan::Link::kRead)) {
      follower_.Begin(plan::Link::kRead);
      follower_.End(*op);
      return true;
    }
    const auto op = write_ ? std::nullopt : follower_.Next(plan::Link::kWrite);
    if (op) follower_.Begin(plan::Link::kWrite);
    if (op) write_ = op;
    return op.has_value();
  }
  bool Lease() {
    const auto& events = follower_.step()->trace.events;
    if (events_ == events.size() || !follower_.IsReady(events_)) return false;
    const auto event = follower_.Match(events[events_]);
    EXPECT_EQ(event, events_);
    follower_.Happened(*event);
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
  ASSERT_EQ(step->plan.bytes[plan::Link::kWrite], 100u);
  Carrier carrier(step);
  carrier.Run();
  EXPECT_EQ(carrier.dropped().count(kDirty), 0u);
  EXPECT_EQ(carrier.dropped().count(kClean), 1u);
  carrier.EndWrite();
  carrier.Run();
  EXPECT_EQ(carrier.dropped().size(), 4u);
  EXPECT_EQ(carrier.events(), step->trace.events.size());
}

// Tiles of 100 bytes that are leased in pinned memory in turn, and which of the releases are
// followed by nothing but a read.
std::vector<bool> ReadNext(const std::vector<std::pair<plan::TileIndex, Access>>& leases,
                           uint64_t pinned_bytes) {
  plan::TraceRecorder recorder;
  for (int i = 0; i < 2; ++i) recorder.AddTile({.size_bytes = 100, .stored = true});
  recorder.Begin(0);
  for (const auto& [tile, access] : leases) {
    recorder.Acquire(tile, Tier::kPinned, access, 0, 0);
    recorder.Release(tile, Tier::kPinned, access, 0);
  }
  StepPlan step{.trace = recorder.End()};
  auto made = plan::MakePlan(step.trace, {.pinned_bytes = pinned_bytes,
                                          .frame_alignment = 1,
                                          .device_lookahead_bytes = 0,
                                          .pinned_lookahead_bytes = 0});
  EXPECT_TRUE(made.ok()) << made.status();
  step.plan = *std::move(made);
  const PlanFollower follower(std::make_shared<const StepPlan>(std::move(step)));
  std::vector<bool> read_next;
  for (size_t i = 0; i < leases.size(); ++i) {
    read_next.push_back(follower.IsReadNext(2 * i + 1));
    EXPECT_EQ(follower.IsReadNext(2 * (leases.size() + i) + 1), read_next[i]) << "the next period";
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

// A release on a stream may be over only when the next lease has come, or has ended, too.
TEST(PlanFollower, AReadThatHasComeIsNoLongerNext) {
  plan::TraceRecorder recorder;
  recorder.AddTile({.size_bytes = 100, .stored = true});
  recorder.Begin(0);
  for (int i = 0; i < 2; ++i) {
    recorder.Acquire(0, Tier::kPinned, Access::kRead, 0, 0);
    recorder.Release(0, Tier::kPinned, Access::kRead, 0);
  }
  StepPlan step{.trace = recorder.End()};
  auto made = plan::MakePlan(step.trace, {.pinned_bytes = 100, .frame_alignment = 1});
  ASSERT_TRUE(made.ok()) << made.status();
  step.plan = *std::move(made);
  PlanFollower follower(std::make_shared<const StepPlan>(std::move(step)));
  const std::vector<plan::TraceEvent>& events = follower.step()->trace.events;
  for (uint64_t period = 0; period < 2; ++period) {
    for (uint64_t i = 0; i < 4; ++i) {
      const auto event = follower.Match(events[i]);
      ASSERT_TRUE(event);
      if (events[i].kind == plan::TraceEvent::Kind::kRelease) {
        EXPECT_TRUE(follower.IsReadNext(*event)) << "event " << *event;
      } else if (*event > 0) {
        EXPECT_FALSE(follower.IsReadNext(*event - 1)) << "event " << *event;
      }
    }
  }
}

}  // namespace
}  // namespace spillway::engine
