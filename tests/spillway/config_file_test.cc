// SPDX-License-Identifier: Apache-2.0
//
// The reader and the writer of --config files, called directly instead of through a command.

#include "tools/spillway/command/config_file.h"

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/seed.h"

namespace spillway::test {
namespace {

using command::ConfigEntry;
using command::ParseConfig;
using command::QuoteForConfig;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Returns the value of the only entry of `text`, or the error message.
std::string ValueIn(std::string_view text) {
  const absl::StatusOr<std::vector<ConfigEntry>> entries = ParseConfig(text);
  if (!entries.ok()) return std::string(entries.status().message());
  if (entries->size() != 1 || entries->front().values.size() != 1) return "not one value";
  return entries->front().values.front();
}

std::string ErrorOf(std::string_view text) {
  return std::string(ParseConfig(text).status().message());
}

TEST(ConfigFile, ReadsWhatTomlSays) {
  for (const auto& [text, value] : std::vector<std::pair<std::string, std::string>>{
           {R"(a = "b#c")", "b#c"},
           {R"(a = "b" # "c")", "b"},
           {R"(a="b\"c\\d\te\nf")", "b\"c\\d\te\nf"},
           {R"(a = "\u00e9\U0001F600\b\f\r")", "\u00e9\U0001F600\b\f\r"},
           {R"(a = 'b\n"c"')", R"(b\n"c")"},
           {"a\t=\t\"b c\"\t\r\n\n# d\n", "b c"},
           {"a = \"\"", ""},
           {"a = 18446744073709551615", "18446744073709551615"},
           {"a = -1.50e-3#", "-1.50e-3"},
           {"a = false", "false"},
           {"a = [ \"x,]y\" , ] # z", "x,]y"},
           {"a-B_9 = true", "true"}}) {
    EXPECT_EQ(ValueIn(text), value) << text;
  }
}

TEST(ConfigFile, ReadsKeysLinesAndArraysInOrder) {
  const auto entries = ParseConfig("# first\nb = [0.9, 0.95]\n\na = ['x']\n");
  ASSERT_TRUE(entries.ok()) << entries.status();
  ASSERT_EQ(entries->size(), 2);
  EXPECT_EQ(entries->front().key, "b");
  EXPECT_EQ(entries->front().line, 2);
  EXPECT_THAT(entries->front().values, ElementsAre("0.9", "0.95"));
  EXPECT_EQ(entries->back().line, 4);
  EXPECT_TRUE(entries->back().is_array);
}

TEST(ConfigFile, RefusesAllElseWithItsLineAndWhatIsAccepted) {
  for (const std::string line : {"++",
                                 "--",
                                 "a",
                                 "= 3",
                                 "a =",
                                 "a = # 3",
                                 "a = b",
                                 "a = b c",
                                 "a = 48MiB",
                                 "a = \"x",
                                 "a = 'x",
                                 "a = \"x\\\"",
                                 "a = \"x\\",
                                 "a = \"\\q\"",
                                 "a = \"\\x41\"",
                                 "a = \"\\u00g0\"",
                                 "a = \"\\u12\"",
                                 "a = \"\\ud800\"",
                                 "a = \"\\U00110000\"",
                                 "a = \"\\u0000\"",
                                 "a = \"x\" y",
                                 "a = \"\"\"x\"\"\"",
                                 "a = [1",
                                 "a = []",
                                 "a = [[1]]",
                                 "a = [,]",
                                 "a = [1 2]",
                                 "a = {b = 1}",
                                 "a.b = 3",
                                 "\"a\" = 3",
                                 "[a]",
                                 "[[a]]",
                                 "a = 0x10",
                                 "a = 007",
                                 "a = nan",
                                 "a = 1_000",
                                 "a = 1979-05-27",
                                 "a = true1",
                                 "a == 3",
                                 "a = \x01",
                                 "a = \"\x7f\"",
                                 "a\r = 3",
                                 "\xff\xfe",
                                 "a = \"\xc3\"",
                                 "a = 3 # \xed\xa0\x80"}) {
    EXPECT_THAT(ErrorOf(absl::StrCat("x = 1\n", line, "\ny = 2\n")), HasSubstr("line 2: ")) << line;
  }
  EXPECT_THAT(ErrorOf("a = \"x"), HasSubstr("a value is \"text\", 'text', a number"));
  EXPECT_THAT(ErrorOf("a = 1\nb = 2\na = 1\n"),
              AllOf(HasSubstr("line 3: 'a' is there twice"), HasSubstr("line 1")));
}

// Such files took 20 GB in CLI11's reader and overflow the stack in other readers.
TEST(ConfigFile, HostileFilesTakeNeitherMemoryNorStack) {
  constexpr size_t kMany = size_t{1} << 18;
  std::string dots, brackets, braces, keys, escapes;
  for (size_t i = 0; i < kMany; ++i) {
    dots += "a.";
    brackets += "[";
    braces += "{a=";
    escapes += "\\\\";
  }
  for (int i = 0; i < 50000; ++i) absl::StrAppend(&keys, "k", i, "=1\n");
  for (const std::string& text :
       {"[" + dots + "b]", dots + "b = 1", "a = " + brackets, brackets, "a = " + braces,
        "a = \"" + escapes, keys + "k7 = 1", std::string(kMany, 'a'), std::string(kMany, '\0')}) {
    EXPECT_FALSE(ParseConfig(text).ok()) << text.substr(0, 20);
    EXPECT_LT(ErrorOf(text).size(), 400) << text.substr(0, 20);
  }
  EXPECT_TRUE(ParseConfig(keys).ok());
  EXPECT_TRUE(ParseConfig(std::string(kMany, '\n')).ok());
}

TEST(ConfigFile, AByteOrderMarkAtTheBeginIsNotPartOfTheKey) {
  const auto entries = ParseConfig("\xef\xbb\xbfsteps = 4\n");
  ASSERT_TRUE(entries.ok()) << entries.status();
  EXPECT_EQ(entries->front().key, "steps");
  EXPECT_FALSE(ParseConfig("a = 1\n\xef\xbb\xbf"
                           "b = 2\n")
                   .ok());
}

TEST(ConfigFile, RefusesToWriteWhatIsNotUtf8) {
  for (const std::string value :
       {"\xff", "caf\xe9", "\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80"}) {
    EXPECT_EQ(QuoteForConfig(value).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(ConfigFile, WhatIsWrittenIsReadAsTheSameBytes) {
  const std::vector<std::string> pieces = {
      "\"",   "\\",     "'",      "#",          "\n",      "\r", "\t", "\x01", "\x1f",
      "\x7f", "\u00e9", "\u2028", "\U0001F600", "\\u0041", "[",  "]",  ",",    "=",
      " ",    "a",      "true",   "%",          "\b",      "\f", "/"};
  const uint64_t first = Seed();
  for (uint64_t seed = first; seed != first + 500; ++seed) {
    SCOPED_TRACE(SeedLine(seed));
    std::mt19937_64 random(seed);
    std::string value;
    for (uint64_t left = random() % 12; left > 0; --left) value += pieces[random() % pieces.size()];
    const absl::StatusOr<std::string> quoted = QuoteForConfig(value);
    ASSERT_TRUE(quoted.ok()) << quoted.status();
    EXPECT_EQ(std::count(quoted->begin(), quoted->end(), '\n'), 0);
    EXPECT_EQ(ValueIn(absl::StrCat("k = ", *quoted, "  # from x\n")), value);
  }
}

}  // namespace
}  // namespace spillway::test
