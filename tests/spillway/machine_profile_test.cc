// SPDX-License-Identifier: Apache-2.0
//
// The measured rates of a machine: kept in a file, and measured again if that cannot be used.

#include "tools/spillway/machine/machine_profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>

#include "tests/seed.h"
#include "tests/temp_folder.h"

namespace spillway::command {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kDay = 24 * 60 * 60;
constexpr int64_t kNow = 2'000'000'000;

MachineProfile SomeProfile() {
  return {.drive = simulation::Drive{3.25e9, 1.5e9, 3.5e9},
          .copy_in = 8e9,
          .copy_out = 9e9,
          .checksum = 3e10,
          .memory = 4e10,
          .flops = 1.6e11,
          .update = {1e10, 2e10, 3e10, 4e10}};
}

TEST(MachineProfile, ReadsBackAsItWasWritten) {
  const std::string text = SerializeProfile(SomeProfile(), "a \"machine\"\xff", kNow - kDay);
  const auto read = ParseProfile(text, "a \"machine\"\xff", kNow);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, SomeProfile());
  MachineProfile without = SomeProfile();
  without.drive.reset();
  const auto memory = ParseProfile(SerializeProfile(without, "m", kNow), "m", kNow);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(*memory, without);
}

TEST(MachineProfile, OfAnotherMachineOrTimeIsRefused) {
  const std::string text = SerializeProfile(SomeProfile(), "m", kNow);
  EXPECT_TRUE(ParseProfile(text, "m", kNow + 30 * kDay).ok());
  EXPECT_THAT(ParseProfile(text, "m", kNow + 31 * kDay).status().message(), HasSubstr("month"));
  EXPECT_FALSE(ParseProfile(text, "m", kNow - kDay).ok()) << "from the future";
  EXPECT_THAT(ParseProfile(text, "n", kNow).status().message(), HasSubstr("another machine"));
}

TEST(MachineProfile, WhatIsDamagedIsRefused) {
  const std::string text = SerializeProfile(SomeProfile(), "m", kNow);
  for (size_t size = 0; size + 2 < text.size(); ++size)
    EXPECT_FALSE(ParseProfile(text.substr(0, size), "m", kNow).ok()) << size;
  for (const char* const bad : {"0.0", "-1.0", "1e300", "null", "\"fast\"", "[]", "1e999"}) {
    std::string changed = text;
    changed.replace(changed.find("160000000000.0"), 14, bad);
    EXPECT_FALSE(ParseProfile(changed, "m", kNow).ok()) << bad;
  }
  std::mt19937_64 random(test::Seed());
  SCOPED_TRACE(test::SeedLine(test::Seed()));
  for (int i = 0; i < 2000; ++i) {
    std::string changed = text;
    for (uint64_t flips = 1 + random() % 3; flips > 0; --flips)
      changed[random() % changed.size()] = static_cast<char>(random());
    const auto read = ParseProfile(changed, "m", kNow);
    if (!read.ok()) continue;
    EXPECT_TRUE(std::isfinite(read->flops) && read->flops > 0);
    EXPECT_TRUE(std::isfinite(read->copy_in) && read->copy_in > 0);
  }
}

TEST(MachineProfile, IsTakenFromTheCacheAndMeasuredAgainIfTheFileIsDamaged) {
  const test::TempFolder cache;
  std::string said;
  ProfileOptions options;
  options.threads = 1;
  options.cache = cache / "spillway";
  options.announce = [&](std::string_view text) { said += text; };
  const auto measured = ProfileOf("", options);
  ASSERT_TRUE(measured.ok()) << measured.status();
  EXPECT_FALSE(measured->drive);
  EXPECT_THAT(said, HasSubstr(options.cache)) << "where it is kept";
  for (const double rate : {measured->copy_in, measured->checksum, measured->memory,
                            measured->flops, measured->update[0], measured->update[3]})
    EXPECT_GT(rate, 1e6);
  const std::vector<std::string> files = test::FilesIn(options.cache);
  ASSERT_EQ(files.size(), 1U);
  const std::string file = options.cache + "/" + files[0];

  said.clear();
  const auto kept = ProfileOf("", options);
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(*kept, *measured);
  EXPECT_EQ(said, "") << "nothing is measured";

  test::WriteFile(file, "{\"v\":1,");
  const auto again = ProfileOf("", options);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_NE(said, "");
  EXPECT_THAT(test::ReadFile(file), HasSubstr("spillway machine profile")) << "replaced";
  EXPECT_EQ(test::FilesIn(options.cache), files) << "no temporary file is left";
}

TEST(MachineProfile, IdentitiesOfThreadsDiffer) {
  EXPECT_NE(MachineIdentity("", 1), MachineIdentity("", 2));
  EXPECT_NE(MachineIdentity("/", 1), MachineIdentity("", 1));
  EXPECT_EQ(MachineIdentity("/", 1), MachineIdentity("/", 1));
}

}  // namespace
}  // namespace spillway::command
