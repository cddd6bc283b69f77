// SPDX-License-Identifier: Apache-2.0
//
// No command may crash or hang: not with a small stack, little memory, few open files or a full
// stdout, not on a pipe in place of a store's file, and not on input that nests very deeply.

#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/exhaustive.h"
#include "tests/spillway/command.h"
#include "tests/spillway/training.h"

namespace spillway::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Runs the command under `limits`. If it has not ended after a minute, it counts as hung: it is
// killed, and its exit code is 137.
Ended RunWithin(const std::string& limits, const Arguments& arguments,
                const std::string& after = "") {
  return RunInShell(limits + " timeout -s KILL 60", arguments, after);
}

class HostileLimits : public ::testing::Test {
 protected:
  HostileLimits() {
    const Ended ended = RunCommand(training_.TrainInStore(2));
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
  }
  const Training training_;
};

TEST_F(HostileLimits, ASmallStackIsEnough) {
  if (SPILLWAY_IS_SANITIZED) GTEST_SKIP() << "a sanitizer needs more";
  for (const Arguments& arguments :
       {Arguments{"--version"}, Arguments{"--help"}, Arguments{"inspect", training_.store()},
        Arguments{"fsck", training_.store()}, training_.TrainInStore(4) + Arguments{"--resume"}}) {
    const Ended ended = RunWithin("ulimit -s 64;", arguments);
    EXPECT_EQ(ended.exit_code, 0) << arguments[0] << ended.err;
  }
}

TEST_F(HostileLimits, WhatDoesNotMultiplyNeedsNoBlas) {
  if (SPILLWAY_IS_SANITIZED) GTEST_SKIP() << "a sanitizer needs more";
  for (const std::string limits : {"ulimit -d 60000;", "ulimit -v 200000;"}) {
    for (const Arguments& arguments :
         {Arguments{"--version"}, Arguments{"inspect", training_.store()},
          Arguments{"fsck", training_.store()}, Arguments{"doctor", training_.store()}}) {
      const Ended ended = RunWithin(limits, arguments);
      EXPECT_THAT(ended.exit_code, AnyOf(0, 3)) << limits << arguments[0] << ended.err;
      if (arguments[0] != "doctor") {
        EXPECT_EQ(ended.exit_code, 0) << limits << ended.err;
      }
    }
  }
}

TEST_F(HostileLimits, TooLittleMemoryForBlasIsSaid) {
  if (SPILLWAY_IS_SANITIZED) GTEST_SKIP() << "a sanitizer needs more";
  for (const std::string limits : {"ulimit -d 120000;", "ulimit -v 300000;"}) {
    const Ended ended = RunWithin(
        limits, training_.Train(2) + Arguments{"--device-bytes", "4MiB", "--pinned-bytes", "4MiB"});
    EXPECT_EQ(ended.exit_code, 3) << limits << ended.err;
    EXPECT_THAT(ended.err, HasSubstr("OpenBLAS needs"));
  }
}

TEST_F(HostileLimits, WhatMemoryDoesNotSufficeForIsRefusedInWords) {
  if (SPILLWAY_IS_SANITIZED) GTEST_SKIP() << "a sanitizer needs more";
  const Arguments budgets = {"--device-bytes", "8MiB", "--pinned-bytes", "8MiB"};
  for (int kib = 30'000; kib <= 150'000; kib += 10'000) {
    for (const char* option : {"-v", "-d"}) {
      const std::string limits = absl::StrCat("ulimit ", option, " ", kib, ";");
      const Ended ended = RunWithin(limits, training_.Train(2) + budgets);
      if (ended.exit_code == 127) continue;  // the dynamic loader failed
      EXPECT_EQ(ended.exit_code, 3) << limits << ended.err;
      EXPECT_THAT(ended.err, HasSubstr(absl::StrCat("ulimit ", option))) << limits;
    }
  }
}

TEST_F(HostileLimits, AnArenaThatIsRefusedNamesItsFlag) {
  if (SPILLWAY_IS_SANITIZED) GTEST_SKIP() << "a sanitizer needs more";
  for (const char* option : {"-v", "-d"}) {
    const Ended ended = RunWithin(absl::StrCat("ulimit ", option, " 1000000;"),
                                  training_.Train(2) + Arguments{"--pinned-bytes", "8GiB"});
    EXPECT_EQ(ended.exit_code, 3) << ended.err;
    EXPECT_THAT(ended.err, HasSubstr("--pinned-bytes"));
    EXPECT_THAT(ended.err, HasSubstr(absl::StrCat("('ulimit ", option, "')")));
  }
}

TEST_F(HostileLimits, WithoutRoomForAThreadAStoreIsNotTrimmed) {
  if (SPILLWAY_IS_SANITIZED) GTEST_SKIP() << "a sanitizer needs more";
  const Ended ended = RunWithin("ulimit -s 8192; ulimit -d 4000;", {"trim", training_.store()});
  EXPECT_EQ(ended.exit_code, 3) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("cannot start an I/O thread"));
}

TEST_F(HostileLimits, TooFewFilesForBlasIsNotABlasThatIsMissing) {
  if (SPILLWAY_IS_SANITIZED) GTEST_SKIP() << "a sanitizer needs more";
  const std::string model = training_ / "exported";
  ASSERT_EQ(RunCommand({"snapshot", "export", training_.store(), "--save", model}).exit_code, 0);
  for (int files = 4; files <= 12; ++files) {
    const Ended ended =
        RunWithin(absl::StrCat("ulimit -n ", files, ";"),
                  {"eval", "--model", model, "--data", training_.data(), "--seq", "16"});
    if (ended.exit_code == 127) continue;  // the dynamic loader failed
    EXPECT_THAT(ended.err, Not(HasSubstr("install it"))) << files;
    if (ended.exit_code != 0) {
      EXPECT_THAT(ended.err, AnyOf(HasSubstr("ulimit -n"), HasSubstr("Too many open files")));
    }
  }
}

// With a limit of 13 open files, a library once failed to load in the middle of a run, which then
// continued with kernels that round differently.
TEST_F(HostileLimits, ATrainingThatFewOpenFilesAreEnoughForHasTheSameWeights) {
  if (SPILLWAY_IS_SANITIZED) GTEST_SKIP() << "a sanitizer needs more";
  const Ended expected = RunCommand(training_.Train(4));
  ASSERT_EQ(expected.exit_code, 0) << expected.err;
  const std::string store = training_ / "copy";
  const Arguments resume = training_.Train(4) + Arguments{"--store",
                                                          store,
                                                          "--resume",
                                                          "--commit-every",
                                                          "1",
                                                          "--trace",
                                                          training_ / "trace.json",
                                                          "--metrics-file",
                                                          training_ / "metrics.prom"};
  int ended_well = 0;
  for (int files = 8; files <= 20; ++files) {
    fs::remove_all(store);
    fs::copy(training_.store(), store);
    const Ended ended = RunWithin(absl::StrCat("ulimit -n ", files, ";"), resume);
    if (ended.exit_code == 127) continue;  // the dynamic loader failed
    EXPECT_THAT(ended.exit_code, AnyOf(0, 1)) << files << ": " << ended.err;
    EXPECT_THAT(ended.err, Not(HasSubstr("Bad file descriptor"))) << files;
    if (ended.exit_code != 0) continue;
    EXPECT_EQ(ended.json()["weights_hash"], expected.json()["weights_hash"]) << files;
    ++ended_well;
  }
  EXPECT_GE(ended_well, 1);
}

TEST_F(HostileLimits, NoCommandWaitsForAPipeInPlaceOfAStoresFile) {
  const std::string store = training_ / "piped";
  for (const char* name :
       {"spillway-lock", "spillway-store", "spillway-commit", "spillway-catalog.sqlite",
        "spillway-catalog.sqlite-wal", "spillway-segment-000000"}) {
    fs::copy(training_.store(), store);
    fs::remove(store + "/" + name);
    ASSERT_EQ(mkfifo((store + "/" + name).c_str(), 0600), 0);
    for (const Arguments& arguments :
         {training_.Train(3) + Arguments{"--store", store, "--resume"}, Arguments{"inspect", store},
          Arguments{"fsck", store}, Arguments{"snapshot", "list", store}, Arguments{"trim", store},
          Arguments{"snapshot", "export", store, "--save", training_ / "export"},
          Arguments{"remove", store, "--yes"}}) {
      const Ended ended = RunWithin("", arguments);
      EXPECT_EQ(ended.exit_code, 1) << name << ", " << arguments[0] << ": " << ended.err;
      EXPECT_THAT(ended.err, HasSubstr(std::string(name) + ": it is not a regular file"))
          << arguments[0];
    }
    fs::remove_all(store);
  }
}

TEST_F(HostileLimits, AFullStdoutIsAnError) {
  for (const Arguments& arguments :
       {Arguments{"--help"}, Arguments{"--version"}, Arguments{"train", "--help"},
        Arguments{"inspect", training_.store()}, Arguments{"inspect", training_.store(), "--json"},
        Arguments{"fsck", training_.store(), "--json"}, Arguments{"completion", "bash"}}) {
    const Ended ended = RunWithin("", arguments, ">/dev/full");
    EXPECT_EQ(ended.exit_code, 1) << arguments[0];
    EXPECT_THAT(ended.err, HasSubstr("cannot write to stdout")) << arguments[0];
  }
}

TEST_F(HostileLimits, AReportOfWhatNestsWithoutAnEnd) {
  const std::string deep = training_ / "deep.json";
  for (const std::string& begin : {std::string("{\"v\":1,\"step\":"), std::string("{\"z\":"),
                                   std::string("{\"traceEvents\":")}) {
    WriteFile(deep, begin + std::string(120'000, '['));
    EXPECT_EQ(RunWithin("", {"report", deep, "--out", training_ / "page.html"}).exit_code, 1);
    WriteFile(deep, begin + std::string(120'000, '[') + std::string(120'000, ']') + "}");
    EXPECT_EQ(RunWithin("", {"report", deep, "--out", training_ / "page.html"}).exit_code, 1);
  }
}

}  // namespace
}  // namespace spillway::test
