// SPDX-License-Identifier: Apache-2.0

#include "tests/seed.h"

#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <utility>

namespace spillway::test {
namespace {

class SeedTest : public testing::Test {
 protected:
  SeedTest() {
    if (const char* const given = ::getenv(kName)) outside_ = given;
  }
  ~SeedTest() override {
    if (outside_) {
      Give(outside_->c_str());
    } else {
      ::unsetenv(kName);
    }
  }
  static void Give(const char* value) { ASSERT_EQ(::setenv(kName, value, 1), 0); }

  // Returns the seed and what Seed printed.
  static std::pair<uint64_t, std::string> Ask() {
    testing::internal::CaptureStdout();
    const uint64_t seed = Seed();
    return {seed, testing::internal::GetCapturedStdout()};
  }

  static constexpr const char* kName = "SPILLWAY_TEST_SEED";

 private:
  std::optional<std::string> outside_;
};

TEST_F(SeedTest, IsTheOneThatIsGiven) {
  for (const char* const text : {"0", "7", "18446744073709551615"}) {
    Give(text);
    const auto [seed, printed] = Ask();
    EXPECT_EQ(std::to_string(seed), text);
    EXPECT_EQ(printed, std::string("SPILLWAY_TEST_SEED=") + text + "\n");
  }
}

TEST_F(SeedTest, IsDrawnAnewWhereNoneIsGivenAndPrinted) {
  ::unsetenv(kName);
  std::set<uint64_t> seeds;
  for (int i = 0; i < 20; ++i) {
    const auto [seed, printed] = Ask();
    EXPECT_EQ(printed, SeedLine(seed) + "\n");
    seeds.insert(seed);
  }
  EXPECT_GT(seeds.size(), 10u);
}

TEST_F(SeedTest, FailsTheTestIfItIsNoNumberAndNamesIt) {
  for (const char* const text :
       {"", "x7", "7x", " 7", "-7", "+7", "0x7", "7.0", "18446744073709551616"}) {
    Give(text);
    EXPECT_NONFATAL_FAILURE(Ask(), "SPILLWAY_TEST_SEED is '" + std::string(text) + "'");
  }
}

}  // namespace
}  // namespace spillway::test
