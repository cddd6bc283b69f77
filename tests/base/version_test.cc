// SPDX-License-Identifier: Apache-2.0

#include "spillway/version.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace spillway {
namespace {

TEST(Version, IsTheProjects) { EXPECT_EQ(Version(), EXPECTED_VERSION); }

TEST(Version, TheCommitIsOneOrUnknown) {
  EXPECT_THAT(std::string(BuildCommit()),
              ::testing::MatchesRegex("[0-9a-f]{7,40}(-dirty)?|unknown"));
}

}  // namespace
}  // namespace spillway
