// SPDX-License-Identifier: Apache-2.0

#include "src/engine/following/plan_follower.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <optional>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "src/plan/make_plan.h"
#include "src/plan/reserve.h"
#include "tests/engine/small_plan.h"
#include "tests/plan/policies.h"
#include "tests/plan/random_trace.h"
#include "tests/seed.h"

namespace spillway::engine {
namespace {

constexpr plan::TileIndex kDirty = 0, kClean = 1;

// Returns a plan in which one tile is written and three are read. Nothing is retained between uses.
StepPlan FourTilesInTwoFrames() {
  const std::vector<SmallLease> leases = {{kDirty, Access::kReadWrite}, {1}, {2}, {3}};
  return PlanOf(LeasesInTurn(4, 100, Tier::kPinned, leases),
                {.pinned_bytes = 200,
                 .choose_retained = FunctionOf(plan::Policy::kNone),
                 .frame_alignment = 1});
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

// Carries out what the follower permits, but ends no write by itself.
class Carrier {
 public:
  explicit Carrier(const StepPlan& step) : follower_(step) {}

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
    const auto& events = follower_.step().trace.events;
    if (events_ == events.size()) return false;
    const plan::TraceEvent& next = events[events_];
    // Each tile is used once.
    const bool is_use = next.kind != plan::TraceEvent::Kind::kRelease;
    if (is_use && !follower_.tiles().OpsBeforeAreOver(next.tile, 0)) return false;
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
  const StepPlan step = FourTilesInTwoFrames();
  ASSERT_EQ(step.plan.bytes[plan::Transfer::kWrite], 100u);
  Carrier carrier(step);
  carrier.Run();
  EXPECT_EQ(carrier.dropped().count(kDirty), 0u);
  EXPECT_EQ(carrier.dropped().count(kClean), 1u);
  carrier.EndWrite();
  carrier.Run();
  EXPECT_EQ(carrier.dropped().size(), 4u);
  EXPECT_EQ(carrier.events(), step.trace.events.size());
}

StepPlan PlanWithin(uint64_t pinned_bytes, const plan::Trace& trace) {
  return PlanOf(trace,
                {.pinned_bytes = pinned_bytes, .frame_alignment = 1, .has_lookahead = false});
}

// Returns a trace of two tiles of 100 bytes that are leased in pinned memory in turn.
plan::Trace TraceOf(const std::vector<SmallLease>& leases) {
  return LeasesInTurn(2, 100, Tier::kPinned, leases);
}

// Carries out every operation that may run.
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

// Tiles of other threads may come in any order, and readers may overlap.
TEST(PlanFollower, OnlyTheOrderOfATilesOwnUsesCounts) {
  constexpr auto kRead = Access::kRead;
  const plan::Trace trace = TraceOf({{0, kRead}, {0, kRead}, {1, kRead}});
  PlanFollower follower(PlanWithin(200, trace));
  for (const size_t event : {4, 0, 2, 5, 1, 3}) ComesAndGoes(follower, trace.events[event]);
  EXPECT_TRUE(follower.EndStep());
  for (const size_t event : {0, 1, 4, 5}) ComesAndGoes(follower, trace.events[event]);
  EXPECT_FALSE(follower.EndStep()) << "tile 0 was used once only";
}

TEST(PlanFollower, AUseThatIsNotPlannedIsExtra) {
  const plan::Trace trace = TraceOf({{0, Access::kRead}, {1, Access::kRead}});
  PlanFollower follower(PlanWithin(200, trace));
  ComesAndGoes(follower, trace.events[0]);
  ComesAndGoes(follower, trace.events[1]);
  EXPECT_FALSE(follower.Ask(trace.events[0])) << "a second use in one step";
  EXPECT_TRUE(follower.tiles().has_strayed(0));
  plan::TraceEvent written = trace.events[2];
  written.access = Access::kReadWrite;
  EXPECT_FALSE(follower.Ask(written));
  for (int extra = 2; extra < 10; ++extra) {
    EXPECT_FALSE(follower.IsAnotherStep()) << extra << " beside one that is the plan's";
    EXPECT_FALSE(follower.Ask(written));
  }
  EXPECT_TRUE(follower.IsAnotherStep());
  EXPECT_FALSE(follower.EndStep());
}

// Tiles 0 and 1 share one frame. A caller that requests tile 1 before tile 0 has been used need not
// wait for that use.
TEST(PlanFollower, AUseWaitsForTransfersAndNotForAnotherCaller) {
  const plan::Trace trace = TraceOf({{0, Access::kRead}, {1, Access::kRead}});
  PlanFollower follower(PlanWithin(100, trace));
  CarryOut(follower);
  const auto use = follower.Ask(trace.events[2]);
  ASSERT_TRUE(use);
  EXPECT_FALSE(follower.tiles().OpsBeforeAreOver(1, *use));
  EXPECT_FALSE(follower.MayWait(1, *use));
  ComesAndGoes(follower, trace.events[0]);
  EXPECT_FALSE(follower.MayWait(1, *use)) << "tile 0 is leased";
  ComesAndGoes(follower, trace.events[1]);
  EXPECT_TRUE(follower.MayWait(1, *use));
  CarryOut(follower);
  EXPECT_TRUE(follower.tiles().OpsBeforeAreOver(1, *use));
}

// This holds for any number of uses since the last query.
TEST(PlanFollower, AUseWaitsWhereAllThatIsBeforeItHasBeenAskedFor) {
  std::vector<SmallLease> leases(500, SmallLease{0});
  leases.push_back({1});
  const plan::Trace trace = TraceOf(leases);
  PlanFollower follower(PlanWithin(100, trace));
  CarryOut(follower);
  for (size_t event = 0; event < 1000; ++event) ComesAndGoes(follower, trace.events[event]);
  const auto use = follower.Ask(trace.events[1000]);
  ASSERT_TRUE(use);
  EXPECT_TRUE(follower.MayWait(1, *use));
}

// The same case with many leases that are held at once and released before the next use.
TEST(PlanFollower, AUseWaitsWhereAllLeasesBeforeItHaveBeenLetGo) {
  constexpr plan::TileIndex kTiles = 300;
  plan::TraceRecorder recorder;
  for (plan::TileIndex tile = 0; tile <= kTiles; ++tile)
    recorder.AddTile({.size_bytes = 100, .stored = true});
  recorder.Begin(0);
  for (plan::TileIndex tile = 0; tile < kTiles; ++tile)
    recorder.Acquire(tile, Tier::kPinned, Access::kRead, 0, 0);
  for (plan::TileIndex tile = 0; tile < kTiles; ++tile)
    recorder.Release(tile, Tier::kPinned, Access::kRead, 0);
  recorder.Acquire(kTiles, Tier::kPinned, Access::kRead, 0, 0);
  recorder.Release(kTiles, Tier::kPinned, Access::kRead, 0);
  const plan::Trace trace = recorder.End();
  PlanFollower follower(PlanWithin(uint64_t{kTiles} * 100, trace));
  CarryOut(follower);
  for (size_t event = 0; event < 2 * kTiles; ++event) {
    const plan::TraceEvent& is = trace.events[event];
    if (event < kTiles) {
      ComesAndGoes(follower, is);
    } else {
      follower.ReleaseAsked(is.tile);  // its stream has not reached the release
    }
  }
  const auto use = follower.Ask(trace.events[2 * kTiles]);
  ASSERT_TRUE(use);
  EXPECT_FALSE(follower.tiles().OpsBeforeAreOver(kTiles, *use));
  EXPECT_TRUE(follower.MayWait(kTiles, *use));
}

// One caller was behind all others, so its use is followed by many that have been asked for
// already. To pass them all at once would take long, and the caller's thread holds a lock
// meanwhile.
TEST(PlanFollower, PassesABoundedNumberOfEventsInARunOfThePump) {
  std::vector<SmallLease> leases(300, SmallLease{1});
  leases.front() = {0};
  const plan::Trace trace = TraceOf(leases);
  PlanFollower follower(PlanWithin(100, trace));
  for (size_t event = 2; event < trace.events.size(); ++event)
    ComesAndGoes(follower, trace.events[event]);
  const auto passed_in = [&](auto&& calls) {
    const uint64_t before = follower.EventsUntilNextUse(0);
    calls();
    return before - follower.EventsUntilNextUse(0);
  };
  const auto run_pump = [&] {
    follower.BeginPump(PlanFollower::kMostPassed);
    for (int call = 0; call < 10; ++call) (void)follower.MayWait(1, 0);
  };
  EXPECT_EQ(passed_in(run_pump), 0u) << "tile 0 has not been asked for";
  ComesAndGoes(follower, trace.events[0]);
  ComesAndGoes(follower, trace.events[1]);
  const uint64_t in_one_run = passed_in(run_pump);
  EXPECT_GT(in_one_run, 0u);
  EXPECT_LT(in_one_run, 100u);
  EXPECT_EQ(passed_in(run_pump), in_one_run);
  for (int run = 0; run < 20; ++run) run_pump();
  EXPECT_EQ(follower.EventsUntilNextUse(0), 0u) << "the plan has come to the next step";
}

TEST(PlanFollower, WhatIsSkippedCountsAsOver) {
  const plan::Trace trace = TraceOf({{0, Access::kRead}, {1, Access::kRead}});
  PlanFollower follower(PlanWithin(100, trace));
  for (int step = 0; step < 3; ++step) {
    CarryOut(follower);
    const auto use = follower.Ask(trace.events[2]);
    ASSERT_TRUE(use);
    follower.Skip(1, *use);
    EXPECT_TRUE(follower.tiles().OpsBeforeAreOver(1, *use));
    EXPECT_EQ(follower.tiles().PlannedAt(1, Tier::kPinned), 0u);
    follower.Happened(1);
    for (const size_t event : {3, 0, 1}) ComesAndGoes(follower, trace.events[event]);
    EXPECT_TRUE(follower.EndStep());
  }
  CarryOut(follower);
  EXPECT_TRUE(follower.TakeMoved());
}

// Thousands of operations may have been skipped. To drop them all at once would take long, and the
// caller's thread holds a lock meanwhile.
TEST(PlanFollower, AnOperationThatWasSkippedIsTakenAndDropped) {
  constexpr plan::TileIndex kTiles = 6;
  std::vector<SmallLease> leases;
  for (plan::TileIndex tile = 0; tile < kTiles; ++tile) leases.push_back({tile});
  const StepPlan step = PlanOf(LeasesInTurn(kTiles, 100, Tier::kPinned, leases),
                               {.pinned_bytes = 400,
                                .choose_retained = FunctionOf(plan::Policy::kNone),
                                .frame_alignment = 1});
  PlanFollower follower(step);
  for (const plan::TileIndex tile : {0, 1}) {
    ASSERT_TRUE(follower.tiles().HasOpDue(tile));
    follower.Skip(tile, 0);
  }
  for (plan::TileIndex tile = 0; tile < 3; ++tile) {
    const auto op = follower.Take(plan::Transfer::kRead);
    ASSERT_TRUE(op);
    EXPECT_EQ(follower.OpAt(*op).tile, tile);
    EXPECT_EQ(follower.tiles().MayStartNow(*op), tile == 2);
  }
}

// Adds what the plan does next with each tile: its next use, and whether it is dropped in each
// tier.
void AddNext(const PlanProgress& tiles, std::vector<uint64_t>* next) {
  for (plan::TileIndex tile = 0; tile < tiles.num_tiles(); ++tile) {
    next->push_back(tiles.NextUse(tile).value_or(~uint64_t{0}));
    for (const Tier tier : {Tier::kDevice, Tier::kPinned})
      next->push_back(tiles.IsDroppedNext(tile, tier) ? 1 : 0);
  }
}

// Replays `num_events` events and returns what happens. An operation that may run is carried out
// now or later, as `random` decides. If `next` is not null, it receives what AddNext adds after
// each event from number `next_from` on.
std::vector<uint64_t> Follow(PlanFollower& follower, size_t num_events, std::mt19937_64 random,
                             size_t next_from = 0, std::vector<uint64_t>* next = nullptr) {
  std::vector<uint64_t> happened;
  const std::vector<plan::TraceEvent>& events = follower.step().trace.events;
  std::vector<PlanFollower::Count> running;
  const auto end = [&](size_t i) {
    follower.End(running[i]);
    happened.push_back(running[i]);
    running.erase(running.begin() + static_cast<std::ptrdiff_t>(i));
  };
  const auto move = [&] {
    for (size_t link = 0; link < plan::kNumLinks; ++link) {
      while (const auto op = follower.Take(static_cast<plan::Transfer>(link))) {
        happened.push_back(*op);
        follower.Begin(*op);
        running.push_back(*op);
      }
    }
    while (const auto op = follower.TakeFree()) {
      happened.push_back(*op);
      follower.End(*op);
    }
    if (!running.empty() && random() % 2 == 0) end(random() % running.size());
  };
  for (size_t i = 0; i < num_events; ++i) {
    for (uint64_t moves = random() % 4; moves > 0; --moves) move();
    const plan::TraceEvent& event = events[i % events.size()];
    if (event.kind != plan::TraceEvent::Kind::kRelease) {
      const auto use = follower.Ask(event);
      happened.push_back(use.value_or(~uint64_t{0}));
      if (!use) break;
      happened.push_back(follower.MayWait(event.tile, *use) ? 1 : 0);
      while (follower.tiles().IsRunning(event.tile)) end(0);
      if (!follower.tiles().OpsBeforeAreOver(event.tile, *use)) follower.Skip(event.tile, *use);
      follower.Happened(event.tile);
    } else {
      follower.ReleaseAsked(event.tile);
      follower.Released(event.tile);
    }
    if ((i + 1) % events.size() == 0) happened.push_back(follower.EndStep() ? 1 : 0);
    happened.push_back(follower.EventsUntilNextUse(event.tile));
    happened.push_back(
        follower.tiles().PlannedAt(event.tile, Tier::kPinned).value_or(~uint64_t{0}));
    if (const auto moved = follower.TakeMoved()) happened.push_back(moved->total());
    if (next != nullptr && i >= next_from) AddNext(follower.tiles(), next);
  }
  return happened;
}

// The follower is restarted at any event, and tiles are added that its plan does not have.
TEST(PlanFollower, OneThatIsRestartedDoesWhatANewOneDoes) {
  const uint64_t first = test::Seed();
  int plans = 0, with_reserve = 0;
  for (uint64_t seed = first; seed != first + 60; ++seed) {
    SCOPED_TRACE(test::SeedLine(seed));
    std::mt19937_64 random(seed);
    std::mt19937 of_trace(static_cast<uint32_t>(seed));
    plan::Trace trace = plan::RandomTrace({.tiles = 12, .leases = 60, .held = 2}, of_trace);
    for (plan::TraceEvent& event : trace.events)
      event.thread = static_cast<uint16_t>(event.tile % (1 + seed % 2));
    plan::PlanOptions options{.device_bytes = 12 + random() % 20,
                              .pinned_bytes = 20 + random() % 30,
                              .frame_alignment = 1};
    const plan::Reserve reserve = plan::ReserveFor(trace, 1);
    options.device_reserve_bytes = reserve.device_bytes;
    options.pinned_reserve_bytes = reserve.pinned_bytes;
    StepPlan step{.trace = trace};
    auto made = plan::MakePlan(step.trace, options);
    if (!made.ok()) continue;
    step.plan = *std::move(made);
    ++plans;
    with_reserve += reserve == plan::Reserve{} ? 0 : 1;
    const std::mt19937_64 same(random());
    const size_t num_events = 3 * trace.events.size();
    PlanFollower fresh(step), again(step);
    std::vector<uint64_t> next;
    const std::vector<uint64_t> expected = Follow(fresh, num_events, same, 0, &next);
    // What the plan does next with a tile does not depend on earlier queries.
    for (int round = 0; round < 3; ++round) {
      PlanFollower queried_late(step);
      const size_t from = random() % num_events;
      std::vector<uint64_t> late;
      EXPECT_EQ(Follow(queried_late, num_events, same, from, &late), expected);
      EXPECT_TRUE(std::equal(late.rbegin(), late.rend(), next.rbegin(),
                             next.rbegin() + static_cast<std::ptrdiff_t>(late.size())));
    }
    for (int round = 0; round < 3; ++round) {
      (void)Follow(again, random() % num_events, std::mt19937_64(random()));
      again.Restart();
      EXPECT_TRUE(
          again.tiles().has_strayed(static_cast<plan::TileIndex>(again.tiles().num_tiles())))
          << "a tile that was added since";
      EXPECT_EQ(Follow(again, num_events, same), expected);
      again.Restart();
    }
  }
  EXPECT_GT(plans, 0);
  std::cout << plans << " plans, " << with_reserve << " with a reserve\n";
}

}  // namespace
}  // namespace spillway::engine
