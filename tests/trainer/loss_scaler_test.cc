// SPDX-License-Identifier: Apache-2.0
//
// Tests the loss scaler, step by step, against the behaviour of torch.amp.GradScaler.

#include "tools/trainer/loss_scaler.h"

#include <cmath>
#include <limits>

#include "gtest/gtest.h"

namespace spillway::trainer {
namespace {

TEST(LossScaler, StartsAtPyTorchsDefault) { EXPECT_EQ(LossScaler({}).scale(), 65536.0F); }

TEST(LossScaler, GrowsAfterExactlyTheInterval) {
  LossScaler scaler({});
  for (int step = 0; step < 1999; ++step) scaler.Update(false);
  EXPECT_EQ(scaler.scale(), 65536.0F);
  scaler.Update(false);
  EXPECT_EQ(scaler.scale(), 131072.0F);
  EXPECT_EQ(scaler.state().good_steps, 0);
}

TEST(LossScaler, OverflowHalvesAndStartsTheCountAgain) {
  LossScaler scaler({.growth_interval = 3});
  scaler.Update(false);
  scaler.Update(false);
  scaler.Update(true);
  EXPECT_EQ(scaler.scale(), 32768.0F);
  scaler.Update(false);
  scaler.Update(false);
  EXPECT_EQ(scaler.scale(), 32768.0F) << "the two good steps before the overflow do not count";
  scaler.Update(false);
  EXPECT_EQ(scaler.scale(), 65536.0F);
}

TEST(LossScaler, DoesNotGrowBeyondFloat) {
  LossScaler scaler({.initial_scale = 0x1.0p127, .growth_interval = 1});
  scaler.Update(false);
  EXPECT_EQ(scaler.scale(), 0x1.0p127F);
  EXPECT_TRUE(std::isfinite(scaler.scale()));
}

TEST(LossScaler, DisabledStaysAtOne) {
  LossScaler scaler({.enabled = false, .growth_interval = 1});
  scaler.Update(true);
  scaler.Update(false);
  EXPECT_EQ(scaler.scale(), 1.0F);
}

TEST(LossScaler, RestoredContinuesExactly) {
  const LossScalerOptions options = {.growth_interval = 5};
  LossScaler whole(options);
  LossScaler first(options);
  for (int step = 0; step < 7; ++step) {
    whole.Update(step == 1);
    first.Update(step == 1);
  }
  LossScaler second(options);
  second.Restore(first.state());
  for (int step = 0; step < 20; ++step) {
    whole.Update(step == 9);
    second.Update(step == 9);
    ASSERT_EQ(whole.state(), second.state());
  }
}

}  // namespace
}  // namespace spillway::trainer
