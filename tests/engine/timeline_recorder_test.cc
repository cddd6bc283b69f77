// SPDX-License-Identifier: Apache-2.0
//
// Tests what the recorder records, in virtual time: spans of transfers, waits by cause, compute
// between leases, and only the newest events if there are too many.

#include "src/engine/timeline_recorder.h"

#include <cstdint>
#include <set>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace spillway::engine {
namespace {

using Kind = TimelineEvent::Kind;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr int64_t kUs = 1000;

Action Moving(Transfer transfer, TileIndex tile, MoveReason reason = MoveReason::kLease) {
  return {.kind = Action::Kind::kTransfer, .transfer = transfer, .tile = tile, .reason = reason};
}

struct Span {
  Kind kind;
  uint32_t tile;
  int64_t begin_us, end_us;
  friend bool operator==(const Span&, const Span&) = default;
};

std::vector<Span> Spans(const Timeline& timeline) {
  std::vector<Span> spans;
  for (const TimelineEvent& event : timeline.events) {
    spans.push_back({event.kind, event.tile, event.begin_ns / kUs, event.end_ns / kUs});
  }
  return spans;
}

TEST(TimelineRecorder, ATransferHasItsTimesBytesAndReason) {
  TimelineRecorder recorder(100, 0);
  recorder.BeginTransfer(Moving(Transfer::kRead, 7, MoveReason::kAhead), 10 * kUs);
  recorder.BeginTransfer(Moving(Transfer::kWrite, 8, MoveReason::kCommit), 11 * kUs);
  recorder.EndTransfer(8, 4096, /*ok=*/false, 20 * kUs);
  recorder.EndTransfer(7, 8192, /*ok=*/true, 30 * kUs);
  const Timeline timeline = recorder.Take(40 * kUs);
  ASSERT_THAT(Spans(timeline),
              ElementsAre(Span{Kind::kWrite, 8, 11, 20}, Span{Kind::kRead, 7, 10, 30}));
  EXPECT_TRUE(timeline.events[0].failed);
  EXPECT_EQ(timeline.events[0].reason, MoveReason::kCommit);
  EXPECT_FALSE(timeline.events[1].failed);
  EXPECT_EQ(timeline.events[1].reason, MoveReason::kAhead);
  EXPECT_EQ(timeline.events[1].size_bytes, 8192U);
  EXPECT_EQ(timeline.begin_ns, 0);
  EXPECT_EQ(timeline.end_ns, 40 * kUs);
}

TEST(TimelineRecorder, CopiesOfOneDirectionFollowOneAnother) {
  TimelineRecorder recorder(100, 0);
  recorder.BeginTransfer(Moving(Transfer::kCopyIn, 1), 10 * kUs);
  recorder.BeginTransfer(Moving(Transfer::kCopyIn, 2), 11 * kUs);
  recorder.BeginTransfer(Moving(Transfer::kCopyOut, 3), 12 * kUs);
  recorder.EndTransfer(1, 1, true, 20 * kUs);
  recorder.EndTransfer(2, 1, true, 30 * kUs);
  recorder.EndTransfer(3, 1, true, 31 * kUs);
  EXPECT_THAT(Spans(recorder.Take(40 * kUs)),
              ElementsAre(Span{Kind::kCopyIn, 1, 10, 20}, Span{Kind::kCopyIn, 2, 20, 30},
                          Span{Kind::kCopyOut, 3, 12, 31}));
}

TEST(TimelineRecorder, ZerosCrossNoLink) {
  TimelineRecorder recorder(100, 0);
  recorder.BeginTransfer(Moving(Transfer::kZero, 1), 10 * kUs);
  recorder.EndTransfer(1, 4096, true, 20 * kUs);
  EXPECT_THAT(recorder.Take(40 * kUs).events, IsEmpty());
}

TEST(TimelineRecorder, ComputeIsTheTimeBetweenLeasesAndNamedByTheLast) {
  TimelineRecorder recorder(100, 0);
  recorder.Grant(1, 100 * kUs);
  recorder.Grant(2, 101 * kUs);  // too short: its time is counted with what follows
  recorder.Grant(3, 150 * kUs);
  recorder.BeginWait(9, 4, {StallCause::kNvme, Tier::kDevice, 4}, 180 * kUs);
  recorder.EndWait(9, 200 * kUs);
  EXPECT_THAT(Spans(recorder.Take(260 * kUs)),
              ElementsAre(Span{Kind::kCompute, 2, 100, 150}, Span{Kind::kCompute, 3, 150, 180},
                          Span{Kind::kStall, 4, 180, 200}, Span{Kind::kCompute, 4, 200, 260}));
}

// The system gives the id of a thread that has ended to a later one.
TEST(TimelineRecorder, AThreadDoesNotGoOnWithWhatOneBeforeItDid) {
  const std::thread::id id = std::this_thread::get_id();
  TimelineRecorder recorder(100, 0);
  recorder.Grant(1, 100 * kUs, id, 1001);
  recorder.Grant(2, 200 * kUs, id, 1001);
  recorder.Grant(3, 900 * kUs, id, 1002);
  recorder.Grant(4, 950 * kUs, id, 1002);
  const Timeline timeline = recorder.Take(960 * kUs);
  EXPECT_THAT(Spans(timeline),
              ElementsAre(Span{Kind::kCompute, 1, 100, 200}, Span{Kind::kCompute, 3, 900, 950}));
  for (const TimelineEvent& event : timeline.events) EXPECT_EQ(event.thread, 0);
}

TEST(TimelineRecorder, NoTwoThreadsHaveOneSerialNumber) {
  std::set<uint64_t> serials = {TimelineRecorder::ThisSerial()};
  for (int i = 0; i < 4; ++i)
    std::thread([&] { serials.insert(TimelineRecorder::ThisSerial()); }).join();
  EXPECT_EQ(serials.size(), 5U);
  EXPECT_TRUE(serials.contains(TimelineRecorder::ThisSerial()));
}

TEST(TimelineRecorder, AWaitIsCutWhereItsCauseChanges) {
  TimelineRecorder recorder(100, 0);
  recorder.BeginWait(9, 4, {StallCause::kWriteBack, Tier::kPinned, 5}, 10 * kUs);
  EXPECT_THAT(recorder.Waiting(), ElementsAre(9));
  recorder.Explain(9, {StallCause::kWriteBack, Tier::kPinned, 5}, 15 * kUs);  // no change of cause
  recorder.Explain(9, {StallCause::kNvme, Tier::kDevice, 4}, 20 * kUs);
  recorder.EndWait(9, 30 * kUs);
  EXPECT_THAT(recorder.Waiting(), IsEmpty());
  const Timeline timeline = recorder.Take(30 * kUs);
  ASSERT_THAT(Spans(timeline),
              ElementsAre(Span{Kind::kStall, 4, 10, 20}, Span{Kind::kStall, 4, 20, 30}));
  EXPECT_EQ(timeline.events[0].cause, StallCause::kWriteBack);
  EXPECT_EQ(timeline.events[0].other, 5U);
  EXPECT_EQ(timeline.events[1].cause, StallCause::kNvme);
}

TEST(TimelineRecorder, ACommitEndsComputeAndHoldsItsFlush) {
  TimelineRecorder recorder(100, 0);
  recorder.Grant(1, 0);
  recorder.BeginCommit(50 * kUs);
  recorder.EndFlush(70 * kUs);
  recorder.EndCommit(90 * kUs);
  constexpr uint32_t kNone = TimelineEvent::kNoTile;
  EXPECT_THAT(Spans(recorder.Take(100 * kUs)),
              ElementsAre(Span{Kind::kCompute, 1, 0, 50}, Span{Kind::kFlush, kNone, 50, 70},
                          Span{Kind::kCommit, kNone, 50, 90}, Span{Kind::kCompute, 1, 90, 100}));
}

TEST(TimelineRecorder, WorkThatHardlyPausesIsOneSpan) {
  TimelineRecorder recorder(100, 0);
  recorder.Work(20 * kUs, 30 * kUs);
  recorder.Work(35 * kUs, 40 * kUs);
  recorder.Work(90 * kUs, 95 * kUs);
  constexpr uint32_t kNone = TimelineEvent::kNoTile;
  EXPECT_THAT(Spans(recorder.Take(100 * kUs)),
              ElementsAre(Span{Kind::kMover, kNone, 20, 40}, Span{Kind::kMover, kNone, 90, 95}));
}

TEST(TimelineRecorder, OccupancyIsKeptWhereItChanges) {
  TimelineRecorder recorder(100, 0);
  recorder.Occupied(Tier::kDevice, 4096, 1 * kUs);
  recorder.Occupied(Tier::kDevice, 4096, 2 * kUs);
  recorder.Occupied(Tier::kPinned, 4096, 3 * kUs);
  recorder.Occupied(Tier::kDevice, 0, 4 * kUs);
  const Timeline timeline = recorder.Take(5 * kUs);
  ASSERT_EQ(timeline.events.size(), 3U);
  EXPECT_EQ(timeline.events[2].tier, Tier::kDevice);
  EXPECT_EQ(timeline.events[2].size_bytes, 0U);
}

TEST(TimelineRecorder, KeepsTheNewestInOrderAndCountsTheRest) {
  TimelineRecorder recorder(4, 0);
  for (uint32_t i = 1; i <= 10; ++i) recorder.Occupied(Tier::kPinned, i, i * kUs);
  Timeline timeline = recorder.Take(11 * kUs);
  EXPECT_EQ(timeline.dropped, 6U);
  ASSERT_EQ(timeline.events.size(), 5U) << "and the level at which they begin";
  for (uint64_t i = 0; i < 5; ++i) EXPECT_EQ(timeline.events[i].size_bytes, 6 + i);

  recorder.Occupied(Tier::kPinned, 11, 12 * kUs);
  timeline = recorder.Take(13 * kUs);
  EXPECT_EQ(timeline.dropped, 0U) << "a new timeline begins with Take";
  EXPECT_EQ(timeline.events.size(), 2U);
  EXPECT_EQ(timeline.begin_ns, 11 * kUs);
}

struct Level {
  Tier tier;
  uint64_t size_bytes;
  int64_t at_us;
  friend bool operator==(const Level&, const Level&) = default;
};

std::vector<Level> Levels(const Timeline& timeline) {
  std::vector<Level> levels;
  for (const TimelineEvent& event : timeline.events) {
    if (event.kind != Kind::kOccupancy) continue;
    EXPECT_EQ(event.begin_ns, event.end_ns);
    levels.push_back({event.tier, event.size_bytes, event.begin_ns / kUs});
  }
  return levels;
}

TEST(TimelineRecorder, EachTimelineBeginsWithTheLevelsOfTheTiers) {
  TimelineRecorder recorder(100, 0);
  recorder.Occupied(Tier::kPinned, 4096, 1 * kUs);
  EXPECT_THAT(Levels(recorder.Take(10 * kUs)), ElementsAre(Level{Tier::kPinned, 4096, 1}));
  EXPECT_THAT(Levels(recorder.Take(20 * kUs)), ElementsAre(Level{Tier::kPinned, 4096, 10}));
  recorder.Occupied(Tier::kPinned, 0, 25 * kUs);
  EXPECT_THAT(Levels(recorder.Take(30 * kUs)),
              ElementsAre(Level{Tier::kPinned, 4096, 20}, Level{Tier::kPinned, 0, 25}));
  EXPECT_THAT(recorder.Take(40 * kUs).events, IsEmpty());
}

TEST(TimelineRecorder, TheLevelsOfTheTiersOutliveTheEventsThatSetThem) {
  TimelineRecorder recorder(4, 0);
  recorder.Occupied(Tier::kDevice, 1, 0);
  recorder.Occupied(Tier::kPinned, 4096, 1 * kUs);
  (void)recorder.Take(2 * kUs);
  recorder.Occupied(Tier::kDevice, 2, 3 * kUs);
  for (TileIndex tile = 0; tile < 10; ++tile) {
    recorder.BeginTransfer(Moving(Transfer::kRead, tile), 10 * tile * kUs);
    recorder.EndTransfer(tile, 1, /*ok=*/true, (10 * tile + 5) * kUs);
  }
  const Timeline timeline = recorder.Take(100 * kUs);
  EXPECT_EQ(timeline.dropped, 7U);
  EXPECT_EQ(timeline.events.size(), 6U);
  EXPECT_THAT(Levels(timeline),
              ElementsAre(Level{Tier::kDevice, 2, 65}, Level{Tier::kPinned, 4096, 65}))
      << "when the oldest event left ended";
}

}  // namespace
}  // namespace spillway::engine
