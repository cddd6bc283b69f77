// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/plan/step_lanes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace spillway::command {
namespace {

using Kind = TimelineEvent::Kind;
using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

TimelineEvent Event(Kind kind, int64_t begin_ns, int64_t end_ns) {
  TimelineEvent event;
  event.kind = kind;
  event.begin_ns = begin_ns;
  event.end_ns = end_ns;
  return event;
}

const Lane& LaneOf(const std::vector<Lane>& lanes, Kind kind) {
  for (const Lane& lane : lanes)
    if (lane.kind == kind) return lane;
  ADD_FAILURE();
  return lanes.front();
}

TEST(StepLanes, AreTheSharesOfEachStretch) {
  Timeline timeline;
  timeline.begin_ns = 1000;
  timeline.end_ns = 1400;
  // Two reads that overlap and a third; a write that began before and ends after the record.
  timeline.events = {Event(Kind::kRead, 1010, 1060), Event(Kind::kRead, 1050, 1150),
                     Event(Kind::kRead, 1350, 1400), Event(Kind::kWrite, 900, 2000),
                     Event(Kind::kCompute, 1100, 1100)};
  const std::vector<Lane> lanes = LanesOf(timeline, 4);
  const auto near = [](double value) { return DoubleNear(value, 1e-9); };
  EXPECT_THAT(LaneOf(lanes, Kind::kRead).busy,
              ElementsAre(near(0.9), near(0.5), near(0), near(0.5)));
  EXPECT_THAT(LaneOf(lanes, Kind::kWrite).busy, ElementsAre(near(1), near(1), near(1), near(1)));
  EXPECT_THAT(LaneOf(lanes, Kind::kCompute).busy, ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(LaneOf(lanes, Kind::kCopyIn).busy, ElementsAre(0, 0, 0, 0));
}

TEST(StepLanes, OfARecordThatIsNotWholeThereAreNone) {
  Timeline timeline;
  EXPECT_THAT(LanesOf(timeline, 4), IsEmpty());
  timeline.end_ns = 100;
  timeline.events = {Event(Kind::kRead, 0, 50)};
  EXPECT_EQ(LanesOf(timeline, 4).size(), 6U);
  timeline.dropped = 1;
  EXPECT_THAT(LanesOf(timeline, 4), IsEmpty());
}

}  // namespace
}  // namespace spillway::command
