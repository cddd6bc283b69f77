// SPDX-License-Identifier: Apache-2.0

#include "io/store/device_rotation.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace spillway::io {
namespace {

std::optional<DeviceProfile> Rates(double read, double write) {
  return DeviceProfile{1 << 20, 1, 1, 1, read, write};
}

// Returns the devices that take `pages` pages of one byte in turn, if each device has room.
std::vector<uint16_t> Turns(DeviceRotation& rotation, int pages) {
  std::vector<uint16_t> turns;
  for (int i = 0; i < pages; ++i) {
    turns.push_back(rotation.Order().front());
    rotation.Took(turns.back(), 1);
  }
  return turns;
}

TEST(DeviceRotation, IsEvenWithoutProfilesOrWithOneMissing) {
  DeviceRotation rotation(3);
  EXPECT_EQ(Turns(rotation, 6), (std::vector<uint16_t>{0, 1, 2, 0, 1, 2}));
  rotation.SetProfiles({Rates(9, 9), std::nullopt, Rates(1, 1)});
  EXPECT_EQ(Turns(rotation, 6), (std::vector<uint16_t>{0, 1, 2, 0, 1, 2}));
}

TEST(DeviceRotation, FollowsTheTimeOfAByteEachWay) {
  DeviceRotation rotation(2);
  // 1/8 + 1/8 = 1/4 and 1/1 + 1/1 = 2 seconds a byte: eight to one.
  rotation.SetProfiles({Rates(8, 8), Rates(1, 1)});
  const auto turns = Turns(rotation, 90);
  EXPECT_EQ(std::count(turns.begin(), turns.end(), 1), 10);
  // A high read rate alone does not make a device fast.
  rotation.SetProfiles({Rates(1e9, 1), Rates(2, 2)});
  const auto even = Turns(rotation, 90);
  EXPECT_NEAR(static_cast<double>(std::count(even.begin(), even.end(), 0)), 45, 1);
}

// A device that is ahead by some bytes when it slows down stays ahead by as many bytes, which now
// take it longer.
TEST(DeviceRotation, FollowsASpeed) {
  DeviceRotation rotation(2);
  rotation.SetProfiles({Rates(8, 8), Rates(8, 8)});
  rotation.Order();
  rotation.Took(0, 4);
  rotation.SetSpeed(0, 0.5);
  EXPECT_EQ(Turns(rotation, 8), (std::vector<uint16_t>(8, 1)));
  const auto turns = Turns(rotation, 90);
  EXPECT_NEAR(static_cast<double>(std::count(turns.begin(), turns.end(), 0)), 30, 1);
  rotation.SetSpeed(0, 1);
  const auto even = Turns(rotation, 90);
  EXPECT_NEAR(static_cast<double>(std::count(even.begin(), even.end(), 0)), 45, 2);
}

TEST(DeviceRotation, LargerPagesCountForMore) {
  DeviceRotation rotation(2);
  rotation.Order();
  rotation.Took(0, 3);
  EXPECT_EQ(Turns(rotation, 3), (std::vector<uint16_t>{1, 1, 1}));
}

TEST(DeviceRotation, OwesNothingToADeviceWithoutRoom) {
  DeviceRotation rotation(2);
  for (int i = 0; i < 100; ++i) {
    rotation.Order();
    rotation.Took(1, 1);  // device 0 is full
  }
  const auto turns = Turns(rotation, 10);
  EXPECT_LE(std::count(turns.begin(), turns.end(), 0), 6) << "and not all ten";
}

}  // namespace
}  // namespace spillway::io
