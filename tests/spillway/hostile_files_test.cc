// SPDX-License-Identifier: Apache-2.0
//
// No file of the user may be overwritten or removed: not through a flag that names the wrong file,
// not through a link in a store's folder, and not because a file has the name of a store's file.

#include <filesystem>
#include <map>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/spillway/command.h"
#include "tests/spillway/training.h"

namespace spillway::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Returns each file under a folder with its bytes, or a link with its target. The bytes of a lock
// file are left out, because they are the id of the process that held it last.
std::map<std::string, std::string> Manifest(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string name = entry.path().string();
    if (entry.is_symlink()) {
      files[name] = "-> " + fs::read_symlink(entry.path()).string();
    } else {
      const bool is_lock = entry.path().filename() == "spillway-lock" && fs::file_size(name) < 8;
      files[name] = entry.is_directory() ? "folder" : is_lock ? "lock" : ReadFile(name);
    }
  }
  return files;
}

class HostileFiles : public ::testing::Test {
 protected:
  HostileFiles() {
    // The store is small, because each test reads all its bytes many times.
    const Ended ended = RunCommand(training_.TrainInStore(2) +
                                   Arguments{"--trace", trace_, "--store-bytes", "4MiB"});
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    WriteFile(training_ / "letter", "Dear Sir");
  }
  // Expects that the command is refused with these words and changes no file.
  void ExpectRefused(const Arguments& arguments, const std::string& words) const {
    const auto before = Manifest(training_ / ".");
    const Ended ended = RunCommand(arguments);
    EXPECT_THAT(ended.exit_code, ::testing::AnyOf(1, 2)) << ended.err;
    EXPECT_THAT(ended.err, HasSubstr(words));
    EXPECT_TRUE(Manifest(training_ / ".") == before) << ended.err;
  }

  const Training training_;
  const std::string trace_ = training_ / "trace.json";
};

TEST_F(HostileFiles, ALogOrATraceReplacesOnlyItsLike) {
  const Arguments resume = training_.TrainInStore(3) + Arguments{"--resume"};
  const std::string catalog = training_.store() + "/spillway-catalog.sqlite";
  const std::string config = training_.model() + "/config.json";
  for (const std::string& victim : {catalog, config, training_ / "letter", training_.log()}) {
    ExpectRefused(resume + Arguments{"--trace", victim}, victim);
  }
  for (const std::string& victim : {catalog, config}) {
    ExpectRefused(resume + Arguments{"--trace", victim, "--force"}, "give another name");
  }
  for (const std::string& victim : {catalog, config, training_ / "letter", trace_}) {
    Arguments other = training_.Train(2);
    other.back() = victim;  // --log-json
    ExpectRefused(other, victim);
  }
}

TEST_F(HostileFiles, ForceReplacesALetter) {
  const Ended ended =
      RunCommand(training_.Train(2) + Arguments{"--trace", training_ / "letter", "--force"});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ReadFile(training_ / "letter"), HasSubstr("spillway trace"));
}

TEST_F(HostileFiles, ALogAndATraceAreTwoFiles) {
  fs::create_symlink(training_.log(), training_ / "link");
  for (const std::string& name : {training_.log(), training_ / "link", training_ / "./log.jsonl"}) {
    ExpectRefused(training_.Train(2) + Arguments{"--trace", name}, "--trace");
  }
  fs::remove(training_.log());
  ExpectRefused(training_.Train(2) + Arguments{"--trace", training_.log()}, "are both");
}

// This includes names of files that do not exist yet: the catalog's log comes and goes.
TEST_F(HostileFiles, NoOutputHasANameOfTheStores) {
  const Arguments resume = training_.TrainInStore(3) + Arguments{"--resume"};
  for (const char* flag : {"--trace", "--metrics-file"}) {
    for (const char* name : {"spillway-catalog.sqlite-wal", "spillway-commit", "spillway-lock",
                             "spillway-segment-000001", "spillway-store"}) {
      ExpectRefused(resume + Arguments{flag, training_.store() + "/" + name, "--force"}, flag);
    }
  }
  const Arguments first = training_.Train(2) + Arguments{"--store", training_ / "new"};
  fs::create_directory(training_ / "new");
  ExpectRefused(first + Arguments{"--trace", training_ / "new/spillway-catalog.sqlite-shm"},
                "a file of --store");
  ExpectRefused(Arguments{"report", training_.log(), "--out",
                          training_.store() + "/spillway-catalog.sqlite-wal"},
                "only files of the store");
}

TEST_F(HostileFiles, WhatTheRunReadsIsNotReplacedEvenByForce) {
  for (const char* name : {"train.npy", "meta.json"}) {
    const std::string victim = training_.data() + "/" + name;
    if (!fs::exists(victim)) continue;
    ExpectRefused(training_.Train(2) + Arguments{"--trace", victim, "--force"},
                  "nothing is replaced");
  }
}

TEST_F(HostileFiles, AStoreBehindALinkThatLeadsToNoFolder) {
  const std::string link = training_ / "disk";
  for (const char* target : {"missing", "letter", "disk"}) {
    fs::create_symlink(target, link);
    const std::string words = link + " is a symbolic link to " + target;
    ExpectRefused(training_.Train(2) + Arguments{"--store", link}, words);
    ExpectRefused(training_.Train(2) + Arguments{"--store", link + "/run"}, words);
    ExpectRefused({"inspect", link}, words);
    const Ended ended = RunCommand({"doctor", link});
    EXPECT_EQ(ended.exit_code, 3) << ended.err;
    EXPECT_THAT(ended.out, HasSubstr(words));
    fs::remove(link);
  }
}

TEST_F(HostileFiles, ADashIsNoName) {
  for (const char* flag : {"--trace", "--metrics-file"}) {
    ExpectRefused(training_.Train(2) + Arguments{flag, "-"}, "give /dev/stdout");
  }
  ExpectRefused({"report", training_.log(), "--out", "-"}, "--out - names no file");
}

TEST_F(HostileFiles, WhatARunWritesLiesApart) {
  const std::string out = training_ / "out";
  const Arguments run = training_.Train(2);
  ExpectRefused(run + Arguments{"--save", out, "--store", out}, "lie in each other");
  ExpectRefused(run + Arguments{"--save", out, "--store", out + "/store"}, "lie in each other");
  ExpectRefused(run + Arguments{"--save", out + "/./tuned/", "--store", out}, "lie in each other");
  ExpectRefused(run + Arguments{"--save", out, "--trace", out + "/trace.json"}, "--save");
  ExpectRefused(run + Arguments{"--save", out, "--metrics-file", out}, "--save");
  ExpectRefused(run + Arguments{"--store", out, "--metrics-file", out}, "the folder of --store");
  ExpectRefused(run + Arguments{"--store", out + "/a", "--trace", out}, "the folder of --store");
  ExpectRefused(run + Arguments{"--save", out + "/a", "--trace", out}, "which is a file");
  ExpectRefused(run + Arguments{"--trace", out, "--metrics-file", training_ / "x/../out"},
                "are both");
  fs::create_directory(training_ / "empty");
  fs::create_directory_symlink(training_ / "empty", training_ / "to-empty");
  ExpectRefused(run + Arguments{"--save", training_ / "to-empty"}, "symbolic link");
}

TEST_F(HostileFiles, WhatIsReplacedEachStepNeedsAFolderThatTakesFiles) {
  const std::string longest(250, 'n');  // too long for a file name with ".new-PID"
  ExpectRefused(training_.Train(2) + Arguments{"--metrics-file", training_ / longest},
                "--metrics-file");
}

TEST_F(HostileFiles, ALinkIsFollowedToAFileOfTheKindOnly) {
  fs::create_symlink(training_ / "letter", training_ / "to-letter");
  fs::create_symlink(training_ / "nothing", training_ / "to-nothing");
  ExpectRefused(training_.Train(2) + Arguments{"--trace", training_ / "to-letter"},
                "is not a trace");
  ExpectRefused(training_.Train(2) + Arguments{"--trace", training_ / "to-nothing"},
                "link to nothing");
  fs::create_symlink(trace_, training_ / "to-trace");
  const Ended ended = RunCommand(training_.Train(2) + Arguments{"--trace", training_ / "to-trace"});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
}

TEST_F(HostileFiles, AReportReplacesOnlyAReport) {
  const Arguments report = {"report", training_.log(), "--out"};
  for (const std::string& victim :
       {training_ / "letter", trace_, training_.model() + "/config.json"}) {
    ExpectRefused(report + Arguments{victim}, "is not a page of spillway report");
  }
  const std::string page = training_ / "page.html";
  for (int i = 0; i < 2; ++i) {
    const Ended ended = RunCommand(report + Arguments{page});
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
  }
  const Ended forced = RunCommand(report + Arguments{training_ / "letter", "--force"});
  EXPECT_EQ(forced.exit_code, 0) << forced.err;
  EXPECT_EQ(ReadFile(training_ / "letter"), ReadFile(page));
}

TEST_F(HostileFiles, AStoreOpensNoFileThroughALink) {
  for (const char* name : {"spillway-lock", "spillway-store", "spillway-commit",
                           "spillway-catalog.sqlite", "spillway-catalog.sqlite-wal",
                           "spillway-catalog.sqlite-journal", "spillway-segment-000000"}) {
    const std::string folder = training_ / "linked";
    fs::create_directory(folder);
    fs::create_symlink(training_ / "letter", folder + "/" + name);
    ExpectRefused(training_.Train(2) + Arguments{"--store", folder}, "");
    fs::remove_all(folder);
    // The same link, in a copy of a complete store.
    fs::copy(training_.store(), folder);
    fs::remove(folder + "/" + name);
    fs::create_symlink(training_ / "letter", folder + "/" + name);
    ExpectRefused(training_.Train(3) + Arguments{"--store", folder, "--resume"}, "");
    fs::remove_all(folder);
  }
}

TEST_F(HostileFiles, ALockFileThatIsSomebodyElsesStays) {
  const std::string folder = training_ / "mine";
  fs::create_directory(folder);
  fs::create_hard_link(training_ / "letter", folder + "/spillway-lock");
  ExpectRefused(training_.Train(2) + Arguments{"--store", folder}, "was not made by Spillway");
}

TEST_F(HostileFiles, OnlyWhatAnIdentityNamesIsRemoved) {
  const std::string folder = training_ / "mine";
  fs::create_directory(folder);
  WriteFile(folder + "/spillway-segment-000000", "my own");
  ExpectRefused({"remove", folder}, "no identity");
  ExpectRefused({"remove", folder, "--yes"}, "no identity");
}

TEST_F(HostileFiles, AStoreThatLostOneIdentityIsNotRemoved) {
  const std::string both = training_ / "a" + "," + training_ / "b";
  fs::remove(training_.log());
  ASSERT_EQ(RunCommand(training_.Train(2) + Arguments{"--store", both}).exit_code, 0);
  fs::remove(training_ / "b/spillway-store");
  ExpectRefused({"remove", both, "--yes"}, "no identity");
  ExpectRefused({"remove", training_ / "b", "--yes"}, "no identity");
}

}  // namespace
}  // namespace spillway::test
