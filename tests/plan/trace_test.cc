// SPDX-License-Identifier: Apache-2.0

#include "src/plan/trace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/plan/same_step.h"

namespace spillway::plan {
namespace {

using testing::HasSubstr;

struct TwoTiles : TraceRecorder {
  TwoTiles() {
    AddTile({.size_bytes = 100, .stored = true});
    AddTile({.size_bytes = 200, .role = Role::kGradient, .transient = true});
  }
};

Trace Step(double wait = 0) {
  TwoTiles recorder;
  recorder.Begin(1.0);
  recorder.Acquire(0, Tier::kDevice, Access::kRead, 1.5, 1.5 + wait);
  recorder.Acquire(1, Tier::kDevice, Access::kDiscard, 2.0 + wait, 2.0 + wait);
  recorder.Release(1, Tier::kDevice, Access::kDiscard, 3.0 + wait);
  recorder.Release(0, Tier::kDevice, Access::kRead, 3.0 + wait);
  recorder.Discard(1, 3.25 + wait);
  return recorder.End();
}

std::string Wrong(const Trace& trace) { return std::string(Validate(trace).message()); }

TEST(TraceRecorder, LeavesWaitsOut) {
  const Trace trace = Step(/*wait=*/10);
  ASSERT_EQ(trace.events.size(), 5u);
  EXPECT_TRUE(Validate(trace).ok());
  EXPECT_DOUBLE_EQ(trace.events[0].seconds_before, 0.5);
  EXPECT_DOUBLE_EQ(trace.events[1].seconds_before, 0.5);
  EXPECT_DOUBLE_EQ(trace.events[2].seconds_before, 1.0);
  EXPECT_DOUBLE_EQ(trace.events[4].seconds_before, 0.25);
}

// A step begins when the step before has ended. A commit between them does not count as computing,
// but the time before and after the commit does.
TEST(TraceRecorder, LeavesOutWhatItIsTold) {
  TwoTiles recorder;
  recorder.Begin(0);
  recorder.LeaveOut(0.25, 3);
  recorder.Acquire(0, Tier::kDevice, Access::kRead, 3.5, 3.5);
  recorder.Release(0, Tier::kDevice, Access::kRead, 4);
  recorder.LeaveOut(3, 3.75);    // before what is recorded already
  recorder.LeaveOut(3.5, 4.25);  // partly before what is recorded
  recorder.Discard(1, 5);
  const Trace trace = recorder.End();
  EXPECT_DOUBLE_EQ(trace.events[0].seconds_before, 0.75);
  EXPECT_DOUBLE_EQ(trace.events[1].seconds_before, 0.5);
  EXPECT_DOUBLE_EQ(trace.events[2].seconds_before, 0.75);
}

// Another thread's lease begins before this thread's request and ends while this thread waits.
TEST(TraceRecorder, NoTimePassesBackwardsWhereThreadsOverlap) {
  TwoTiles recorder;
  recorder.Begin(0);
  recorder.Acquire(1, Tier::kDevice, Access::kDiscard, 1, 1);
  recorder.Release(1, Tier::kDevice, Access::kDiscard, 4);
  recorder.Acquire(0, Tier::kDevice, Access::kRead, 2, 5);  // requested at 2
  recorder.Release(0, Tier::kDevice, Access::kRead, 7);
  const Trace trace = recorder.End();
  EXPECT_TRUE(Validate(trace).ok()) << Validate(trace);
  EXPECT_EQ(trace.events[2].seconds_before, 0);
  EXPECT_EQ(trace.events[3].seconds_before, 2);
}

// A lease may be recorded after events that happened later.
TEST(TraceRecorder, CountsNoTimeTwiceWhereALeaseIsToldLate) {
  TwoTiles recorder;
  recorder.Begin(0);
  recorder.Acquire(1, Tier::kDevice, Access::kDiscard, 1, 1);
  recorder.Release(1, Tier::kDevice, Access::kDiscard, 4);
  recorder.Acquire(0, Tier::kDevice, Access::kRead, 2, 2);
  recorder.Release(0, Tier::kDevice, Access::kRead, 7);
  const Trace trace = recorder.End();
  EXPECT_EQ(trace.events[2].seconds_before, 0);
  EXPECT_EQ(trace.events[3].seconds_before, 3);
}

TEST(TraceRecorder, ForgetsAStepThatDidNotEnd) {
  TwoTiles recorder;
  recorder.Begin(0);
  recorder.Acquire(0, Tier::kDevice, Access::kRead, 1, 1);
  recorder.Begin(5);
  recorder.Discard(1, 6);
  EXPECT_EQ(recorder.End().events.size(), 1u);
}

TEST(Trace, IsTheSameStepWhateverTheTimes) {
  Trace other = Step(3);
  other.events[0].seconds_before = 99;
  EXPECT_TRUE(SameStep(Step(), other));
  EXPECT_EQ(Fingerprint(Step()), Fingerprint(other));
}

TEST(Trace, IsAnotherStepIfAnythingElseDiffers) {
  const auto differs = [](auto change) {
    Trace other = Step();
    change(other);
    return !SameStep(Step(), other) && Fingerprint(Step()) != Fingerprint(other);
  };
  EXPECT_TRUE(differs([](Trace& t) { t.events[0].access = Access::kReadWrite; }));
  EXPECT_TRUE(differs([](Trace& t) { t.events[0].tier = Tier::kPinned; }));
  EXPECT_TRUE(differs([](Trace& t) { std::swap(t.events[1], t.events[4]); })) << "of one tile";
  EXPECT_TRUE(differs([](Trace& t) { t.events.pop_back(); }));
  EXPECT_TRUE(differs([](Trace& t) { t.tiles[0].size_bytes = 101; }));
  EXPECT_TRUE(differs([](Trace& t) { t.tiles[1].transient = false; }));
}

TEST(Trace, IsTheSameStepHoweverTilesInterleaveAndWhicheverHadBytes) {
  const auto is_same = [](auto change) {
    Trace other = Step();
    change(other);
    return SameStep(Step(), other) && Fingerprint(Step()) == Fingerprint(other);
  };
  EXPECT_TRUE(is_same([](Trace& t) { std::swap(t.events[0], t.events[1]); }));
  EXPECT_TRUE(is_same([](Trace& t) { std::swap(t.events[2], t.events[3]); }));
  EXPECT_TRUE(is_same([](Trace& t) { t.tiles[1].stored = true; }));
  EXPECT_TRUE(is_same([](Trace& t) { t.tiles[0].stored = false; }));
  EXPECT_TRUE(is_same([](Trace& t) { t.tiles.push_back({.size_bytes = 300}); })) << "unused";
}

TEST(TraceRecorder, KnowsTheFingerprintOfTheStepThatRuns) {
  TwoTiles recorder;
  for (const bool discards : {true, false, true}) {
    recorder.Begin(0);
    recorder.Acquire(0, Tier::kDevice, Access::kRead, 0, 0);
    EXPECT_EQ(recorder.num_leases(), 1);
    recorder.Acquire(1, Tier::kDevice, Access::kDiscard, 0, 0);
    recorder.Release(0, Tier::kDevice, Access::kRead, 0);
    recorder.Release(1, Tier::kDevice, Access::kDiscard, 0);
    EXPECT_EQ(recorder.num_leases(), 0);
    if (discards) recorder.Discard(1, 0);
    EXPECT_EQ(recorder.fingerprint() == Fingerprint(Step()), discards);
    const uint64_t fingerprint = recorder.fingerprint();
    EXPECT_EQ(Fingerprint(recorder.End()), fingerprint);
  }
}

TEST(Validate, NamesTheEventAndWhatIsWrong) {
  Trace trace = Step();
  trace.events[1].tile = 7;
  EXPECT_THAT(Wrong(trace), HasSubstr("event 1 (acquire of tile 7 in device): there are 2 tiles"));

  trace = Step();
  trace.events[1] = trace.events[0];
  trace.events[1].access = Access::kReadWrite;
  EXPECT_THAT(Wrong(trace), HasSubstr("has readers: a writer must be alone"));

  trace = Step();
  std::swap(trace.events[0], trace.events[3]);
  EXPECT_THAT(Wrong(trace), HasSubstr("no such lease"));

  trace = Step();
  std::swap(trace.events[2], trace.events[4]);
  EXPECT_THAT(Wrong(trace), HasSubstr("leased: its leases must end first"));

  trace = Step();
  trace.events[4].tile = 0;
  EXPECT_THAT(Wrong(trace), HasSubstr("not transient"));

  trace = Step();
  trace.events.erase(trace.events.begin() + 3);
  EXPECT_THAT(Wrong(trace), HasSubstr("tile 0 is leased at the end"));

  trace = Step();
  trace.events[0].tier = trace.events[3].tier = Tier::kNvme;
  EXPECT_THAT(Wrong(trace), HasSubstr("device or pinned"));

  trace = Step();
  trace.events[2].seconds_before = -1;
  EXPECT_THAT(Wrong(trace), HasSubstr("time is before"));

  trace = Step();
  trace.tiles[1].size_bytes = 0;
  EXPECT_THAT(Wrong(trace), HasSubstr("tile 1 has no bytes"));

  EXPECT_THAT(Wrong(Trace{}), HasSubstr("no events"));
}

}  // namespace
}  // namespace spillway::plan
