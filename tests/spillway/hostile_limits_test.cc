// SPDX-License-Identifier: Apache-2.0
//
// Nothing may crash or hang: under a small stack, with little memory, with a full or a closed
// stdout, on input that nests without an end.

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/exhaustive.h"
#include "tests/spillway/command.h"
#include "tests/spillway/training.h"

namespace spillway::test {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

// A command that has not ended after a minute hangs: it is killed, and its exit code is 137.
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
