// SPDX-License-Identifier: Apache-2.0

#include "io/store/device_speeds.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "io/store/device_rotation.h"

namespace spillway::io {
namespace {

constexpr double kMib = 1 << 20;

std::optional<DeviceProfile> Rates(double mib_per_second) {
  return DeviceProfile{1 << 20, 8, 8, 1, mib_per_second * kMib, mib_per_second * kMib};
}

// Keeps `depth` writes of 1 MiB in flight for `seconds` on a device that does `mib_per_second`.
void Work(DeviceSpeeds& speeds, uint16_t device, double mib_per_second, double* now, double seconds,
          int depth = 4) {
  for (int i = 0; i < depth; ++i) speeds.Begin(device, *now);
  const double end = *now + seconds;
  while (*now < end) {
    *now += 1 / mib_per_second;
    speeds.Begin(device, *now);
    speeds.End(device, IoOp::kWrite, *now, 1 << 20);
  }
  for (int i = 0; i < depth; ++i) speeds.End(device, IoOp::kWrite, *now, 1 << 20);
}

TEST(DeviceSpeeds, ADeviceThatSlowsDownIsNoticedInASecond) {
  DeviceSpeeds speeds({Rates(300), Rates(150)});
  double now = 5;
  Work(speeds, 0, 300, &now, 1);
  EXPECT_NEAR(speeds.speed(0), 1, 0.03);
  EXPECT_TRUE(speeds.TakeChanged());
  EXPECT_FALSE(speeds.TakeChanged());
  Work(speeds, 0, 100, &now, 1.2);
  EXPECT_NEAR(speeds.speed(0), 1.0 / 3, 0.05);
  EXPECT_EQ(speeds.speed(1), 1) << "it had nothing to do";
}

TEST(DeviceSpeeds, ShortSpellsSayNothing) {
  DeviceSpeeds speeds({Rates(300), Rates(150)});
  double now = 0;
  for (int i = 0; i < 50; ++i) {
    Work(speeds, 0, 1000, &now, 0.08);
    now += 0.1;
  }
  EXPECT_EQ(speeds.speed(0), 1);
}

// The caller limits a device that has one request at a time, so the device does not count as slow.
TEST(DeviceSpeeds, AnUnderfedDeviceSaysNothing) {
  DeviceSpeeds speeds({Rates(300), Rates(300)});
  double now = 0;
  Work(speeds, 0, 70, &now, 3, /*depth=*/1);
  EXPECT_EQ(speeds.speed(0), 1);
}

// A device with a small share is soon idle, so no long busy period would show that it has
// recovered.
TEST(DeviceSpeeds, ADeviceThatIdlesWhileOthersWorkRecovers) {
  DeviceSpeeds speeds({Rates(300), Rates(150)});
  double now = 0;
  Work(speeds, 0, 100, &now, 2);
  ASSERT_LT(speeds.speed(0), 0.4);
  for (int i = 0; i < 20; ++i) Work(speeds, 1, 150, &now, 0.1);
  EXPECT_GT(speeds.speed(0), 0.99);
  EXPECT_LE(speeds.speed(0), 1);
}

TEST(DeviceSpeeds, MeasuresNothingWithoutProfiles) {
  DeviceSpeeds speeds({Rates(300), std::nullopt});
  double now = 0;
  Work(speeds, 0, 10, &now, 3);
  Work(speeds, 1, 10, &now, 3);
  EXPECT_EQ(speeds.speed(0), 1);
  EXPECT_EQ(speeds.speed(1), 1);
  EXPECT_FALSE(speeds.TakeChanged());
}

// Tests the whole loop in virtual time: the rotation assigns extents to two devices with queues,
// and receives their measured speeds. The first device falls from 300 MiB/s to a third and
// recovers.
TEST(DeviceSpeeds, SharesFollowTheDevices) {
  const std::vector<std::optional<DeviceProfile>> profiles = {Rates(300), Rates(150)};
  DeviceSpeeds speeds(profiles);
  DeviceRotation rotation(2);
  rotation.SetProfiles(profiles);
  constexpr int kWindow = 64;  // writes in flight on both together
  double rate[2] = {300, 150};
  int queued[2] = {0, 0};
  double next_end[2] = {0, 0};
  double now = 0;
  const auto run = [&](double seconds) {
    int ended[2] = {0, 0};
    const double end = now + seconds;
    while (now < end) {
      while (queued[0] + queued[1] < kWindow) {
        const uint16_t device = rotation.Order().front();
        rotation.Took(device, 1 << 20);
        if (queued[device]++ == 0) next_end[device] = now + 1 / rate[device];
        speeds.Begin(device, now);
      }
      const uint16_t device =
          queued[1] == 0 || (queued[0] > 0 && next_end[0] <= next_end[1]) ? 0 : 1;
      now = next_end[device];
      speeds.End(device, IoOp::kWrite, now, 1 << 20);
      ++ended[device];
      if (--queued[device] > 0) next_end[device] = now + 1 / rate[device];
      if (!speeds.TakeChanged()) continue;
      for (uint16_t i = 0; i < 2; ++i) rotation.SetSpeed(i, speeds.speed(i));
    }
    return std::pair(ended[0] / (ended[0] + double(ended[1])), (ended[0] + ended[1]) / seconds);
  };
  auto [share, total] = run(10);
  EXPECT_NEAR(share, 2.0 / 3, 0.02);
  EXPECT_GT(total, 0.97 * 450);
  rate[0] = 100;
  run(3);
  std::tie(share, total) = run(10);
  EXPECT_NEAR(share, 0.4, 0.03);
  EXPECT_GT(total, 0.95 * 250);
  rate[0] = 300;
  run(5);
  std::tie(share, total) = run(10);
  EXPECT_NEAR(share, 2.0 / 3, 0.03);
  EXPECT_GT(total, 0.95 * 450);
}

}  // namespace
}  // namespace spillway::io
