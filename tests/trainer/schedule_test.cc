// SPDX-License-Identifier: Apache-2.0
//
// Tests the learning-rate schedule against values computed by hand.

#include "tools/trainer/schedule.h"

#include <cmath>

#include "gtest/gtest.h"

namespace spillway::trainer {
namespace {

TEST(Schedule, ConstantWithoutWarmUpIsTheRate) {
  const Schedule schedule = {.learning_rate = 3e-4, .total_steps = 10};
  for (int64_t step : {0, 1, 9, 1000}) EXPECT_EQ(schedule.At(step), 3e-4);
}

TEST(Schedule, WarmUpIsLinearAndEndsAtTheRate) {
  const Schedule schedule = {.learning_rate = 1.0, .warmup_steps = 4, .total_steps = 10};
  EXPECT_EQ(schedule.At(0), 0.25);
  EXPECT_EQ(schedule.At(1), 0.5);
  EXPECT_EQ(schedule.At(3), 1.0);
  EXPECT_EQ(schedule.At(4), 1.0);
}

TEST(Schedule, CosineFallsFromTheRateToZero) {
  const Schedule schedule = {
      .kind = ScheduleKind::kCosine, .learning_rate = 2.0, .warmup_steps = 2, .total_steps = 10};
  EXPECT_EQ(schedule.At(1), 2.0);
  EXPECT_EQ(schedule.At(2), 2.0);
  EXPECT_NEAR(schedule.At(4), 1.0 + std::cos(M_PI / 4), 1e-15);
  EXPECT_NEAR(schedule.At(6), 1.0, 1e-15);
  EXPECT_NEAR(schedule.At(10), 0.0, 1e-15);
  EXPECT_EQ(schedule.At(11), schedule.At(10)) << "past the end it stays";
}

TEST(Schedule, CosineNeverRises) {
  const Schedule schedule = {
      .kind = ScheduleKind::kCosine, .learning_rate = 1e-3, .total_steps = 997};
  for (int64_t step = 1; step < 1000; ++step) EXPECT_LE(schedule.At(step), schedule.At(step - 1));
}

TEST(Schedule, WarmUpLongerThanTheRunIsFinite) {
  const Schedule schedule = {
      .kind = ScheduleKind::kCosine, .learning_rate = 1.0, .warmup_steps = 100, .total_steps = 10};
  EXPECT_EQ(schedule.At(9), 0.1);
  EXPECT_TRUE(std::isfinite(schedule.At(100)));
}

}  // namespace
}  // namespace spillway::trainer
