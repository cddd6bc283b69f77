// SPDX-License-Identifier: Apache-2.0

#include "src/base/bytes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "spillway/types.h"

namespace spillway::base {
namespace {

using ::testing::HasSubstr;

uint64_t Parsed(std::string_view text) {
  const absl::StatusOr<uint64_t> bytes = ParseBytes(text);
  EXPECT_TRUE(bytes.ok()) << bytes.status();
  return bytes.value_or(std::numeric_limits<uint64_t>::max() - 1);
}

TEST(FormatCount, OneIsSingular) {
  EXPECT_EQ(FormatCount(0, "folder"), "0 folders");
  EXPECT_EQ(FormatCount(1, "folder"), "1 folder");
  EXPECT_EQ(FormatCount(2, "folder"), "2 folders");
}

TEST(ParseBytes, ABareNumberIsBytesAndNeedsNoAlignment) {
  EXPECT_EQ(Parsed("0"), 0u);
  EXPECT_EQ(Parsed("123"), 123u);
  EXPECT_EQ(Parsed("50331649"), 50331649u);
  EXPECT_EQ(Parsed("18446744073709551615"), kUnlimited);
}

TEST(ParseBytes, GibibytesAreNotGigabytes) {
  EXPECT_EQ(Parsed("8GiB"), 8 * kGiB);
  EXPECT_EQ(Parsed("8GB"), 8'000'000'000u);
  EXPECT_EQ(Parsed("48MiB"), 48 * kMiB);
  EXPECT_EQ(Parsed("64KiB"), 64 * kKiB);
  EXPECT_EQ(Parsed("2TiB"), 2048 * kGiB);
  EXPECT_EQ(Parsed("7kB"), 7000u);
}

TEST(ParseBytes, FractionsSpacesAndAMissingBAreUnderstood) {
  EXPECT_EQ(Parsed("1.5GiB"), 3 * kGiB / 2);
  EXPECT_EQ(Parsed("0.5KiB"), 512u);
  EXPECT_EQ(Parsed("48 MiB"), 48 * kMiB);
  EXPECT_EQ(Parsed("48Mi"), 48 * kMiB);
  EXPECT_EQ(Parsed("3M"), 3'000'000u);
  EXPECT_EQ(Parsed("17B"), 17u);
}

TEST(ParseBytes, WhatIsNoSizeIsRefusedWithWhatWasGivenAndWhatIsAccepted) {
  for (const char* text : {"",
                           " ",
                           "B",
                           "MiB",
                           "-1",
                           "-0KiB",
                           "+5",
                           "1.5",
                           "12 apples",
                           "1e9",
                           "0x10",
                           "5KiBB",
                           "5iB",
                           "5XiB",
                           "5 KiB ",
                           "nan",
                           "inf",
                           "infGiB",
                           "nanKiB",
                           "1,5GiB",
                           "9223372036854775808",
                           "18446744073709551614",
                           "18446744073709551616",
                           "9999999999TiB",
                           "16EiB"}) {
    const absl::StatusOr<uint64_t> bytes = ParseBytes(text);
    ASSERT_FALSE(bytes.ok()) << text << " was read as " << *bytes;
    EXPECT_EQ(bytes.status().code(), absl::StatusCode::kInvalidArgument);
    const std::string message(bytes.status().message());
    EXPECT_THAT(message, HasSubstr("'" + std::string(text) + "'"));
    EXPECT_THAT(message, HasSubstr("48MiB"));
  }
}

TEST(FormatBytes, EveryFigureCarriesItsUnit) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(64 * kKiB), "64.0 KiB");
  EXPECT_EQ(FormatBytes(3 * kGiB / 2), "1.5 GiB");
  EXPECT_EQ(FormatBytes(512 * kMiB), "512 MiB");
  EXPECT_EQ(FormatBytes(kUnlimited), "16.0 EiB");
}

TEST(Rounding, GoesToTheMultipleBelowAndAbove) {
  EXPECT_EQ(RoundDown(4097, 4096), 4096u);
  EXPECT_EQ(RoundDown(4095, 4096), 0u);
  EXPECT_EQ(RoundUp(4097, 4096), 8192u);
  EXPECT_EQ(RoundUp(4096, 4096), 4096u);
  EXPECT_EQ(RoundUp(0, 4096), 0u);
  EXPECT_EQ(RoundUp(10, 3), 12u);
}

}  // namespace
}  // namespace spillway::base
