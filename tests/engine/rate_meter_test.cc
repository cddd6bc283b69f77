// SPDX-License-Identifier: Apache-2.0

#include "src/engine/rate_meter.h"

#include <gtest/gtest.h>

#include <cmath>

namespace spillway::engine {
namespace {

using plan::Link;

TEST(BusyMeter, CountsTheTimeWithAnythingInFlightOnce) {
  base::BusyMeter meter;
  meter.Begin(1);
  meter.Begin(2);
  EXPECT_EQ(meter.busy().seconds, 0);
  meter.End(3, 100);
  EXPECT_EQ(meter.busy().seconds, 2);
  meter.End(5, 10);
  EXPECT_EQ(meter.busy().seconds, 4);
  meter.Begin(10);  // idle for five seconds
  meter.End(11, 1);
  EXPECT_EQ(meter.busy().seconds, 5);
  EXPECT_EQ(meter.busy().bytes, 111u);
}

TEST(DuplexMeter, KnowsWhatBothDirectionsMoveTogether) {
  base::DuplexMeter meter;
  meter.Begin(0, 0);
  meter.End(0, 1, 1000);  // alone
  meter.Begin(0, 2);
  meter.Begin(1, 3);
  meter.End(0, 5, 10);
  meter.End(1, 9, 100);  // alone again
  EXPECT_EQ(meter.both().seconds, 2);
  EXPECT_EQ(meter.both().bytes, 10u);
  EXPECT_EQ(meter.busy(0).seconds, 4);
  EXPECT_EQ(meter.busy(1).seconds, 6);
}

TEST(RateMeter, NvmeMovesInAllWhatItHasShown) {
  RateMeter meter;
  LinkUse use;
  use.links[static_cast<size_t>(Link::kRead)] = {1000, 1};
  use.links[static_cast<size_t>(Link::kWrite)] = {2000, 1};
  EXPECT_TRUE(std::isinf(meter.rates().nvme));
  meter.EndStep(use);
  EXPECT_EQ(meter.rates().nvme, 3000);  // never both at once: nothing says that they hinder
  use.nvme_both = {2500, 1};
  meter.EndStep(use);
  EXPECT_EQ(meter.rates().nvme, 2500);
  RateMeter slow;
  use.nvme_both = {1500, 1};
  slow.EndStep(use);
  EXPECT_EQ(slow.rates().nvme, 2000);  // what it does in one direction alone
}

TEST(RateMeter, ALinkIsAsFastAsInTheStepInWhichItWasFastest) {
  RateMeter meter;
  LinkUse use;
  base::Busy& read = use.links[static_cast<size_t>(Link::kRead)];
  read = {1000, 1};
  meter.EndStep(use);
  EXPECT_EQ(meter.rates()[Link::kRead], 1000);
  read = {4000, 2};
  meter.EndStep(use);
  EXPECT_EQ(meter.rates()[Link::kRead], 3000);
  read = {4500, 4};
  meter.EndStep(use);
  EXPECT_EQ(meter.rates()[Link::kRead], 3000);
}

TEST(RateMeter, AStepThatHardlyUsedALinkIsAddedToTheNext) {
  RateMeter meter;
  LinkUse use;
  base::Busy& write = use.links[static_cast<size_t>(Link::kWrite)];
  write = {1000, 1};
  meter.EndStep(use);
  write = {2000, 1.001};
  meter.EndStep(use);
  EXPECT_EQ(meter.rates()[Link::kWrite], 1000);
  write = {3000, 1.5};
  meter.EndStep(use);
  EXPECT_EQ(meter.rates()[Link::kWrite], 4000);
}

// A full disk: requests take their time and move nothing.
TEST(RateMeter, AStepInWhichALinkMovedNothingDoesNotMakeItInfinitelyFast) {
  RateMeter meter;
  LinkUse use;
  base::Busy& write = use.links[static_cast<size_t>(Link::kWrite)];
  write = {1000, 1};
  meter.EndStep(use);
  write = {1000, 2};
  meter.EndStep(use);
  EXPECT_EQ(meter.rates()[Link::kWrite], 1000);
  write = {3000, 3};
  meter.EndStep(use);
  EXPECT_EQ(meter.rates()[Link::kWrite], 2000);
}

TEST(RateMeter, WhatWasNeverUsedBoundsNothing) {
  RateMeter meter;
  LinkUse use;
  meter.EndStep(use);
  EXPECT_TRUE(std::isinf(meter.rates()[Link::kCopyIn]));
  EXPECT_TRUE(std::isinf(meter.rates().checksum));
  use.links[static_cast<size_t>(Link::kRead)] = {500,
                                                 0.1};  // too little to go by, but all there is
  use.checksums = {500, 0.001};
  meter.EndStep(use);
  EXPECT_EQ(meter.rates()[Link::kRead], 5000);
  EXPECT_EQ(meter.rates().checksum, 500000);
  EXPECT_TRUE(std::isinf(meter.rates().nvme));  // writing might be as fast as you like
}

}  // namespace
}  // namespace spillway::engine
