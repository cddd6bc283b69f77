// SPDX-License-Identifier: Apache-2.0
//
// `spillway doctor`: what it reports for good and bad folders, and that it leaves no files.

#include <algorithm>
#include <filesystem>
#include <map>
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
       {"kernel", "cpu", "memory", "memlock", "huge_pages", "driver", "gpu", "cublaslt", "folder",
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

TEST(Doctor, AFolderThatIsNotThereYetIsJudgedByItsParentAndTold) {
  const TempFolder folder;
  const Ended ended = RunCommand({"doctor", folder / "a/b", "--json"});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(Verdict(ended.json(), "folder"), "warn");
  EXPECT_THAT(ended.out,
              HasSubstr(folder / "a/b" + " is not there yet; " + folder.path() + " was checked"));
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

TEST(Doctor, EachFolderOfAListIsChecked) {
  const TempFolder folder;
  std::filesystem::create_directory(folder / "n0");
  const std::string list = folder / "n0" + "," + folder / "n1";
  const Ended ended = RunCommand({"doctor", list, "--json"});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(ended.json()["folder"], list);
  std::map<std::string, std::string> verdicts;
  const Json json = ended.json();
  for (const Json& check : json["checks"]) {
    if (check["name"] == "folder") verdicts[check["folder"]] = check["verdict"];
  }
  EXPECT_EQ(verdicts,
            (std::map<std::string, std::string>{{folder / "n0", "ok"}, {folder / "n1", "warn"}}));
  const std::string neither = folder / "n1" + "," + folder / "n2";
  const Json of_neither = RunCommand({"doctor", neither, "--json"}).json();
  EXPECT_EQ(Verdict(of_neither, "calibration"), "ok") << of_neither;
  WriteFile(folder / "n1", "a file");
  const Ended failed = RunCommand({"doctor", list});
  EXPECT_EQ(failed.exit_code, 3);
  EXPECT_THAT(failed.err, HasSubstr(list));
  EXPECT_EQ(RunCommand({"doctor", folder / "n0" + ",,x"}).exit_code, 2);
}

TEST(Doctor, AFolderThatIsNamedTwiceIsAMistake) {
  const TempFolder folder;
  const Ended ended = RunCommand({"doctor", folder.path() + "," + folder.path() + "/."});
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_THAT(ended.err, HasSubstr("named before already"));
  EXPECT_EQ(ended.out, "");
}

TEST(Doctor, WithoutUringItWarns) {
  const TempFolder folder;
  const Ended ended = Command({"doctor", folder.path(), "--json"}, /*without_uring=*/true).Wait();
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(Verdict(ended.json(), "io_uring"), "warn");
}

}  // namespace
}  // namespace spillway::test
