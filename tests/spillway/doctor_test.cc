// SPDX-License-Identifier: Apache-2.0
//
// `spillway doctor`: what it reports for good and bad folders, and that it leaves no files.

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/spillway/command.h"
#include "tests/temp_folder.h"

namespace spillway::test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Returns the verdict of the check `name`, or "" if there is no such check.
std::string Verdict(const Json& json, const std::string& name) {
  for (const Json& check : json["checks"]) {
    if (check["name"] == name) return check["verdict"];
  }
  return "";
}

TEST(Doctor, NamesEverythingAndLeavesNothing) {
  const TempFolder folder;
  const Ended ended = RunCommand({"doctor", folder.path(), "--json"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err << ended.out;
  const Json json = ended.json();
  EXPECT_EQ(json["v"], 1);
  EXPECT_EQ(json["usable"], true);
  EXPECT_EQ(json["folder"], folder.path());
  for (const char* name :
       {"kernel", "cpu", "memory", "memlock", "huge_pages", "driver", "gpu", "folder",
        "file_system", "drive", "free_space", "calls", "o_direct", "io_uring", "calibration"}) {
    EXPECT_THAT(Verdict(json, name), testing::AnyOf("ok", "warn")) << name;
  }
  for (const Json& check : json["checks"]) {
    EXPECT_EQ(check["verdict"] == "ok", check["cure"] == "") << check;
    EXPECT_NE(check["found"], "") << check;
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
}

TEST(Doctor, TheTableHasAWordForEach) {
  const TempFolder folder;
  const Ended ended = RunCommand({"doctor", folder.path()});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.out, HasSubstr("OK    kernel"));
  EXPECT_THAT(ended.out, Not(HasSubstr("\033["))) << "no colours but on a terminal";
}

TEST(Doctor, AFolderThatIsNotThereYetIsJudgedByItsParent) {
  const TempFolder folder;
  const Ended ended = RunCommand({"doctor", folder / "a/b", "--json"});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_FALSE(std::filesystem::exists(folder / "a"));
}

TEST(Doctor, WhatCannotWorkEndsWith3AndSaysWhy) {
  const TempFolder folder;
  WriteFile(folder / "file", "text");
  for (const std::string& place : {std::string("/proc"), folder / "file"}) {
    const Ended ended = RunCommand({"doctor", place, "--json"});
    EXPECT_EQ(ended.exit_code, 3) << place;
    EXPECT_EQ(ended.json()["usable"], false);
    EXPECT_EQ(Verdict(ended.json(), "folder"), "fail");
    EXPECT_THAT(ended.err, HasSubstr("folder"));
  }
  EXPECT_EQ(ReadFile(folder / "file"), "text");
}

TEST(Doctor, WithoutUringItWarns) {
  const TempFolder folder;
  const Ended ended = Command({"doctor", folder.path(), "--json"}, /*without_uring=*/true).Wait();
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(Verdict(ended.json(), "io_uring"), "warn");
}

}  // namespace
}  // namespace spillway::test
