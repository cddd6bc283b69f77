// SPDX-License-Identifier: Apache-2.0

#include "src/engine/rate_meter.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>

namespace spillway::engine {
namespace {

using plan::Transfer;

TEST(BusyMeter, CountsTheTimeWithAnythingInFlightOnce) {
  base::BusyMeter meter;
  meter.Begin(1);
  meter.Begin(2);
  EXPECT_EQ(meter.busy().all.seconds, 0);
  meter.End(3, 100);
  EXPECT_EQ(meter.busy().all.seconds, 2);
  meter.End(5, 10);
  EXPECT_EQ(meter.busy().all.seconds, 4);
  meter.Begin(10);  // after five idle seconds
  meter.End(11, 1);
  EXPECT_EQ(meter.busy().all.seconds, 5);
  EXPECT_EQ(meter.busy().all.bytes, 111u);
}

TEST(BusyMeter, CountsWhatALinkSustainsWithoutTheBeginningsOfSpells) {
  constexpr double kBeginning = base::BusySpells::kBeginningSeconds;
  base::BusyMeter meter;
  const auto spell = [&](double begin) {
    meter.Begin(begin);
    meter.Begin(begin);
    meter.End(begin + kBeginning / 2, 1000);  // in the beginning of the spell, as after a pause
  };
  spell(1);
  meter.End(1 + 0.9 * kBeginning, 10);  // the spell ends within its beginning
  EXPECT_EQ(meter.busy().sustained.bytes, 0u);
  EXPECT_EQ(meter.busy().sustained.seconds, 0);
  spell(2);
  meter.End(3, 100);
  spell(10);
  meter.End(12, 200);
  EXPECT_EQ(meter.busy().sustained.bytes, 300u);
  EXPECT_NEAR(meter.busy().sustained.seconds, 3 - kBeginning, 1e-9);
  EXPECT_NEAR(meter.busy().all.seconds, 3 + 0.9 * kBeginning, 1e-9);
}

TEST(BusyMeter, KnowsTheMostThatWentThroughInASecond) {
  base::BusyMeter meter;
  const auto pass = [&](double now, uint64_t bytes) {
    meter.Begin(now);
    meter.End(now, bytes);
  };
  pass(1000.05, 1);
  pass(1000.55, 20);
  pass(1000.95, 300);  // all three within one second
  EXPECT_EQ(meter.busy().most_bytes_in_a_second, 321u);
  pass(1001.05, 10);  // the first is now a second old
  EXPECT_EQ(meter.busy().most_bytes_in_a_second, 330u);
  pass(1001.75, 15);
  EXPECT_EQ(meter.busy().most_bytes_in_a_second, 330u);
  pass(5000, 331);
  EXPECT_EQ(meter.busy().most_bytes_in_a_second, 331u);
}

TEST(DuplexMeter, KnowsWhatBothDirectionsSustainTogether) {
  base::DuplexMeter meter;
  meter.Begin(0, 0);
  meter.Begin(1, 5);
  meter.Begin(1, 5);
  meter.End(1, 5.05, 1000);
  meter.End(1, 6, 50);
  meter.Begin(1, 7);
  meter.End(0, 7.05, 400);  // both directions are busy for less than the beginning of a spell
  EXPECT_EQ(meter.both().all.bytes, 1450u);
  EXPECT_EQ(meter.both().most_bytes_in_a_second, 1000u);
  EXPECT_EQ(meter.both().sustained.bytes, 50u);
  EXPECT_NEAR(meter.both().sustained.seconds, 0.95, 1e-9);
}

TEST(DuplexMeter, KnowsWhatBothDirectionsMoveTogether) {
  base::DuplexMeter meter;
  meter.Begin(0, 0);
  meter.End(0, 1, 1000);  // direction 0 alone
  meter.Begin(0, 2);
  meter.Begin(1, 3);
  meter.End(0, 5, 10);
  meter.End(1, 9, 100);  // direction 1 alone
  EXPECT_EQ(meter.both().all.seconds, 2);
  EXPECT_EQ(meter.both().all.bytes, 10u);
  EXPECT_EQ(meter.busy(0).all.seconds, 4);
  EXPECT_EQ(meter.busy(1).all.seconds, 6);
}

TEST(RateMeter, NvmeMovesInAllWhatItHasShown) {
  RateMeter meter;
  LinkUse use;
  use.links[static_cast<size_t>(Transfer::kRead)].all = {1000, 1};
  use.links[static_cast<size_t>(Transfer::kWrite)].all = {2000, 1};
  EXPECT_TRUE(std::isinf(meter.rates().nvme));
  meter.EndStep(use);
  EXPECT_EQ(meter.rates().nvme, 3000);  // never both at once, so no sign that one slows the other
  use.nvme_both.all = {2500, 1};
  meter.EndStep(use);
  EXPECT_EQ(meter.rates().nvme, 2500);
  RateMeter slow;
  use.nvme_both.all = {1500, 1};
  slow.EndStep(use);
  EXPECT_EQ(slow.rates().nvme, 2000);  // the higher of the rates of reads and of writes
}

TEST(RateMeter, ALinkIsAsFastAsInTheStepInWhichItWasFastest) {
  RateMeter meter;
  LinkUse use;
  base::Busy& read = use.links[static_cast<size_t>(Transfer::kRead)].all;
  read = {1000, 1};
  meter.EndStep(use);
  EXPECT_EQ(meter.rates()[Transfer::kRead], 1000);
  read = {4000, 2};
  meter.EndStep(use);
  EXPECT_EQ(meter.rates()[Transfer::kRead], 3000);
  read = {4500, 4};
  meter.EndStep(use);
  EXPECT_EQ(meter.rates()[Transfer::kRead], 3000);
}

TEST(RateMeter, AStepThatHardlyUsedALinkIsAddedToTheNext) {
  RateMeter meter;
  LinkUse use;
  base::Busy& write = use.links[static_cast<size_t>(Transfer::kWrite)].all;
  write = {1000, 1};
  meter.EndStep(use);
  write = {2000, 1.001};
  meter.EndStep(use);
  EXPECT_NEAR(meter.rates()[Transfer::kWrite], 1e6, 1);  // in that step itself
  meter.EndStep(use);
  EXPECT_EQ(meter.rates()[Transfer::kWrite], 1000);
  write = {3000, 1.5};
  meter.EndStep(use);
  EXPECT_EQ(meter.rates()[Transfer::kWrite], 4000);
}

// Else the time bound of a short step could be above the step's time.
TEST(RateMeter, AShortStepWasAsFastAsItWas) {
  RateMeter meter;
  LinkUse use;
  base::LinkBusy& read = use.links[static_cast<size_t>(Transfer::kRead)];
  read.all = {20'000'000, 0.2};
  meter.EndStep(use);
  for (int step = 1; step <= 20; ++step) {
    read.all.bytes += 100'000'000;
    read.all.seconds += 0.1;
    if (step > 10) read.sustained = {100'000'000, 1};
    meter.EndStep(use);
    EXPECT_GE(meter.rates()[Transfer::kRead], 0.999e9) << "step " << step;
  }
}

// A link that is always busy, and whose rate varies from step to step.
TEST(RateMeter, NoStepWasFasterThanItsRate) {
  RateMeter meter;
  base::BusyMeter link;
  double now = 100;
  link.Begin(now);
  const auto step = [&](int hundredths, double bytes_per_second) {
    LinkUse use;
    const base::Busy before = link.busy().all;
    for (int i = 0; i < hundredths; ++i) {
      now += 0.01;
      link.Begin(now);
      link.End(now, static_cast<uint64_t>(bytes_per_second / 100));
    }
    use.links[static_cast<size_t>(Transfer::kRead)] = link.busy();
    meter.EndStep(use);
    const base::Busy moved = link.busy().all - before;
    const double rate = meter.rates()[Transfer::kRead];
    EXPECT_LE(static_cast<double>(moved.bytes) / rate, 1.000001 * moved.seconds)
        << hundredths << " hundredths of a second at " << bytes_per_second;
    return rate;
  };
  for (int i = 0; i < 4; ++i) step(60, 800e6);
  step(40, 1200e6);
  EXPECT_LT(step(60, 800e6), 1100e6) << "a step's own rate counts in that step";
  step(30, 1500e6);
  step(20, 1500e6);
  step(60, 800e6);
  step(80, 1200e6);
}

// On a full disk, requests take their time and move nothing.
TEST(RateMeter, AStepInWhichALinkMovedNothingDoesNotMakeItInfinitelyFast) {
  RateMeter meter;
  LinkUse use;
  base::Busy& write = use.links[static_cast<size_t>(Transfer::kWrite)].all;
  write = {1000, 1};
  meter.EndStep(use);
  write = {1000, 2};
  meter.EndStep(use);
  EXPECT_EQ(meter.rates()[Transfer::kWrite], 1000);
  write = {3000, 3};
  meter.EndStep(use);
  EXPECT_EQ(meter.rates()[Transfer::kWrite], 2000);
}

TEST(RateMeter, WhatWasNeverUsedBoundsNothing) {
  RateMeter meter;
  LinkUse use;
  meter.EndStep(use);
  EXPECT_TRUE(std::isinf(meter.rates()[Transfer::kCopyIn]));
  EXPECT_TRUE(std::isinf(meter.rates().checksum));
  // This is less use than a reliable rate needs, but it is all there is.
  use.links[static_cast<size_t>(Transfer::kRead)].all = {500, 0.1};
  use.checksums = {500, 0.001};
  meter.EndStep(use);
  EXPECT_EQ(meter.rates()[Transfer::kRead], 5000);
  EXPECT_EQ(meter.rates().checksum, 500000);
  EXPECT_TRUE(std::isinf(meter.rates().nvme));  // the rate of writes is not known yet
}

// A disk as Linux throttles it: in each time slice, requests pass at the device's rate until the
// slice's bytes are used up, and then none passes.
class Throttle {
 public:
  static constexpr double kSlice = 0.1, kRate = 500e6, kDevice = 2500e6;
  static constexpr uint64_t kBytes = 2'000'000;

  // Returns when a request of kBytes that is made at `now` ends.
  double Serve(double now) {
    free_ = std::max(free_, now);
    const double slice = std::floor(free_ / kSlice + 1e-9);
    if (slice > slice_) {
      slice_ = slice;
      passed_ = 0;
    } else if (passed_ + kBytes > kRate * kSlice) {
      slice_ += 1;
      passed_ = 0;
    }
    free_ = std::max(free_, slice_ * kSlice) + kBytes / kDevice;
    passed_ += kBytes;
    return free_;
  }

 private:
  double free_ = 0;    // when the device becomes free
  double slice_ = -1;  // the last slice in which bytes passed
  double passed_ = 0;  // bytes passed in that slice
};

// Uses a throttled link. A step moves 20 MB without a pause and then pauses, `spells` times, and
// then moves `lasting_bytes` without a pause. Four requests are in flight.
class ThrottledUse {
 public:
  void Step(int spells, uint64_t lasting_bytes) {
    for (int spell = 0; spell < spells; ++spell) {
      Spell(20'000'000);
      now_ += 0.2;
    }
    Spell(lasting_bytes);
    now_ += 0.2;
    LinkUse use;
    use.links[static_cast<size_t>(Transfer::kWrite)] = meter_.busy();
    rates_.EndStep(use);
  }
  double megabytes_per_second() const { return rates_.rates()[Transfer::kWrite] / 1e6; }

 private:
  void Spell(uint64_t bytes) {
    std::deque<double> ends;
    for (uint64_t begun = 0; begun < bytes || !ends.empty();) {
      while (begun < bytes && ends.size() < 4) {
        meter_.Begin(now_);
        ends.push_back(throttle_.Serve(now_));
        begun += Throttle::kBytes;
      }
      now_ = ends.front();
      ends.pop_front();
      meter_.End(now_, Throttle::kBytes);
    }
  }

  double now_ = 0;
  Throttle throttle_;
  base::BusyMeter meter_;
  RateMeter rates_;
};

TEST(RateMeter, ALinkThatMakesUpForPausesIsAsFastAsItStaysWithoutThem) {
  ThrottledUse use;
  for (int step = 0; step < 4; ++step) use.Step(/*spells=*/40, /*lasting_bytes=*/800'000'000);
  EXPECT_NEAR(use.megabytes_per_second(), 500, 25);
}

TEST(RateMeter, AStepOfBurstsAfterPausesIsNotFasterThanWhatTheLinkSustains) {
  ThrottledUse use;
  for (int step = 0; step < 4; ++step) use.Step(/*spells=*/0, /*lasting_bytes=*/800'000'000);
  use.Step(/*spells=*/40, /*lasting_bytes=*/0);  // busy for 0.32 s
  EXPECT_NEAR(use.megabytes_per_second(), 500, 25);
}

TEST(RateMeter, ALinkThatIsSharedInItsLongSpellsIsNotSlowerThanInItsBestSecond) {
  RateMeter meter;
  LinkUse use;
  base::LinkBusy& read = use.links[static_cast<size_t>(Transfer::kRead)];
  read = {.all = {5000, 4}, .sustained = {800, 1.6}, .most_bytes_in_a_second = 1200};
  meter.EndStep(use);
  EXPECT_DOUBLE_EQ(meter.rates()[Transfer::kRead], 1200 / 1.1);  // the rest may be a burst
  read.sustained = {0, 2};                                       // no bytes, as on a full disk
  meter.EndStep(use);
  EXPECT_DOUBLE_EQ(meter.rates()[Transfer::kRead], 1250);
  read.sustained = {8000, 10};
  read.most_bytes_in_a_second = 800;
  meter.EndStep(use);
  EXPECT_EQ(meter.rates()[Transfer::kRead], 800);
}

TEST(RateMeter, ALinkThatNeverStaysBusyIsAsFastAsItWas) {
  ThrottledUse use;
  for (int step = 0; step < 4; ++step) use.Step(/*spells=*/40, /*lasting_bytes=*/0);
  EXPECT_NEAR(use.megabytes_per_second(), 2500, 25);
}

}  // namespace
}  // namespace spillway::engine
