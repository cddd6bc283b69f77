// SPDX-License-Identifier: Apache-2.0

#include "src/plan/reserve.h"

#include <gtest/gtest.h>

namespace spillway::plan {
namespace {

constexpr uint64_t kFrame = 4096;

class Steps {
 public:
  Steps() {
    for (const uint64_t frames : {1, 2, 3, 5})
      trace_.tiles.push_back({.size_bytes = frames * kFrame - 100, .stored = true});
  }
  void Acquire(TileIndex tile, Tier tier, uint16_t thread) {
    Add(TraceEvent::Kind::kAcquire, tile, tier, thread);
  }
  void Release(TileIndex tile, Tier tier, uint16_t thread) {
    Add(TraceEvent::Kind::kRelease, tile, tier, thread);
  }
  Reserve End() const {
    EXPECT_TRUE(Validate(trace_).ok()) << Validate(trace_);
    return ReserveFor(trace_, kFrame);
  }

 private:
  void Add(TraceEvent::Kind kind, TileIndex tile, Tier tier, uint16_t thread) {
    trace_.events.push_back({.tile = tile, .kind = kind, .tier = tier, .thread = thread});
  }
  Trace trace_;
};

TEST(Reserve, IsNothingForOneThread) {
  Steps steps;
  for (const TileIndex tile : {3, 1}) steps.Acquire(tile, Tier::kDevice, 0);
  for (const TileIndex tile : {3, 1}) steps.Release(tile, Tier::kDevice, 0);
  EXPECT_EQ(steps.End(), Reserve{});
}

// In the plan's order, the threads hold at most five frames. In another order, they hold five and
// three at once.
TEST(Reserve, HoldsWhatThreadsMayHaveBeyondThePlan) {
  Steps steps;
  steps.Acquire(3, Tier::kDevice, 0);
  steps.Release(3, Tier::kDevice, 0);
  steps.Acquire(0, Tier::kDevice, 1);
  steps.Acquire(1, Tier::kDevice, 1);
  steps.Release(0, Tier::kDevice, 1);
  steps.Release(1, Tier::kDevice, 1);
  // Each thread adds a frame of the largest tile on the device, and one in pinned memory, through
  // which the tile passes.
  EXPECT_EQ(steps.End(), (Reserve{.device_bytes = (5 + 3 - 5 + 2 * 5) * kFrame,
                                  .pinned_bytes = 2 * 5 * kFrame}));
}

TEST(Reserve, KnowsWhoseLeaseAnotherThreadEnds) {
  Steps steps;
  steps.Acquire(2, Tier::kPinned, 0);
  steps.Release(2, Tier::kPinned, 1);
  steps.Acquire(1, Tier::kPinned, 1);
  steps.Release(1, Tier::kPinned, 1);
  steps.Acquire(1, Tier::kPinned, 0);
  steps.Release(1, Tier::kPinned, 0);
  EXPECT_EQ(steps.End(), (Reserve{.pinned_bytes = (3 + 2 - 3 + 2 * 3) * kFrame}));
}

}  // namespace
}  // namespace spillway::plan
