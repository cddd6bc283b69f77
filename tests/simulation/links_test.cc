// SPDX-License-Identifier: Apache-2.0

#include "src/simulation/links.h"

#include <gtest/gtest.h>

#include <limits>

#include "gmock/gmock.h"

namespace spillway::simulation {
namespace {

using plan::Transfer;
using ::testing::HasSubstr;

constexpr double kMB = 1e6;

Machine SlowHash(std::vector<Drive> drives) {
  Machine machine;
  machine.drives = std::move(drives);
  machine.checksum = 1e15;
  return machine;
}

TEST(Links, CarryOneTransferAfterAnother) {
  Links links(SlowHash({{.read = 100 * kMB, .write = 50 * kMB, .both = 1e15}}));
  EXPECT_DOUBLE_EQ(links.Carry(Transfer::kRead, 100 * kMB, 0).end, 1);
  const Links::Span second = links.Carry(Transfer::kRead, 100 * kMB, 0.5);
  EXPECT_DOUBLE_EQ(second.begin, 1);
  EXPECT_DOUBLE_EQ(second.end, 2);
  EXPECT_DOUBLE_EQ(links.Carry(Transfer::kWrite, 100 * kMB, 0.5).end, 2.5) << "another link";
  EXPECT_DOUBLE_EQ(links.Carry(Transfer::kRead, 100 * kMB, 9).end, 10) << "an idle link";
}

TEST(Links, ReadsAndWritesShareADrive) {
  Links links(SlowHash({{.read = 100 * kMB, .write = 100 * kMB, .both = 100 * kMB}}));
  links.Carry(Transfer::kRead, 100 * kMB, 0);
  EXPECT_DOUBLE_EQ(links.Carry(Transfer::kWrite, 100 * kMB, 0).end, 2);
}

TEST(Links, HashingBindsWhereItIsSlowest) {
  Machine machine = SlowHash({{.read = 1e12, .write = 1e12, .both = 1e12}});
  machine.checksum = 10 * kMB;
  Links links(machine);
  EXPECT_DOUBLE_EQ(links.Carry(Transfer::kRead, 10 * kMB, 0).end, 1);
  EXPECT_DOUBLE_EQ(links.Carry(Transfer::kWrite, 10 * kMB, 0).end, 2);
  EXPECT_LT(links.Carry(Transfer::kCopyIn, 10 * kMB, 0).end, 0.01) << "copies are not hashed";
}

TEST(Links, ASlowDriveDecidesUnlessTheStoreIsCalibrated) {
  const Drive fast = {.read = 300 * kMB, .write = 300 * kMB, .both = 300 * kMB};
  const Drive slow = {.read = 100 * kMB, .write = 100 * kMB, .both = 100 * kMB};
  Machine machine = SlowHash({fast, slow});
  EXPECT_DOUBLE_EQ(Links(machine).Carry(Transfer::kRead, 400 * kMB, 0).end, 1);
  EXPECT_DOUBLE_EQ(machine.Rates()[Transfer::kRead], 400 * kMB);
  machine.is_calibrated = false;
  EXPECT_DOUBLE_EQ(Links(machine).Carry(Transfer::kRead, 400 * kMB, 0).end, 2);
  EXPECT_DOUBLE_EQ(machine.Rates()[Transfer::kRead], 200 * kMB);
}

TEST(Links, JitterIsDrawnByTheSeed) {
  Machine machine;
  machine.jitter = 0.5;
  const auto ends = [&](uint64_t seed) {
    machine.seed = seed;
    Links links(machine);
    std::vector<double> at;
    for (int i = 0; i < 8; ++i) at.push_back(links.Carry(Transfer::kCopyIn, 1 << 20, 0).end);
    return at;
  };
  EXPECT_EQ(ends(3), ends(3));
  EXPECT_NE(ends(3), ends(4));
  const double usual = 8 * (1 << 20) / machine.copy_in;
  EXPECT_GT(ends(3).back(), usual);
  EXPECT_LT(ends(3).back(), 1.5 * usual);
}

TEST(Links, LatencyIsAddedAndCarriesNothing) {
  Machine machine = SlowHash({{.read = 100 * kMB, .write = 100 * kMB, .both = 1e15}});
  machine.latency_seconds = 0.25;
  Links links(machine);
  EXPECT_DOUBLE_EQ(links.Carry(Transfer::kRead, 100 * kMB, 0).end, 1.25);
  EXPECT_DOUBLE_EQ(links.Carry(Transfer::kRead, 100 * kMB, 0).end, 2.25);
}

TEST(Machine, NamesWhatIsWrong) {
  EXPECT_TRUE(Machine().Check().ok());
  Machine machine;
  machine.drives.clear();
  EXPECT_THAT(machine.Check().message(), HasSubstr("no drive"));
  machine.drives = {{.read = 0}};
  EXPECT_THAT(machine.Check().message(), HasSubstr("read rate is 0"));
  machine = {};
  machine.copy_out = -1;
  EXPECT_THAT(machine.Check().message(), HasSubstr("copies from the device"));
  machine = {};
  machine.latency_seconds = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(machine.Check().message(), HasSubstr("latency"));
  machine = {};
  machine.jitter = std::numeric_limits<double>::infinity();
  EXPECT_THAT(machine.Check().message(), HasSubstr("jitter"));
}

}  // namespace
}  // namespace spillway::simulation
