// SPDX-License-Identifier: Apache-2.0
//
// The same numbers, however the bytes moved: configurations that must agree with training in
// memory.

#ifndef SPILLWAY_TESTS_SPILLWAY_SAME_NUMBERS_H_
#define SPILLWAY_TESTS_SPILLWAY_SAME_NUMBERS_H_

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/spillway/command.h"
#include "tests/spillway/training.h"

namespace spillway::test {

// One way for the bytes to go.
struct Way {
  std::string precision;
  std::string page_bytes;
  std::string io;
  int folders = 1;
  bool tight = true;  // the smallest budgets, else unlimited
  bool checkpoint = true;
  bool cut = false;  // stopped and resumed on the way
};

inline std::vector<Way> AllWays() {
  std::vector<Way> ways;
  for (int i = 0; i < 256; ++i) {
    constexpr const char* kPages[] = {"64KiB", "256KiB", "1MiB", "8MiB"};
    ways.push_back({.precision = (i & 1) != 0 ? "fp32" : "fp16-amp",
                    .page_bytes = kPages[i >> 1 & 3],
                    .io = (i & 8) != 0 ? "posix" : "uring",
                    .folders = (i & 16) != 0 ? 2 : 1,
                    .tight = (i & 32) != 0,
                    .checkpoint = (i & 64) != 0,
                    .cut = (i & 128) != 0});
  }
  return ways;
}

inline std::string Describe(const Way& way) {
  return way.precision + ", pages of " + way.page_bytes + ", " + way.io + ", " +
         std::to_string(way.folders) + " folders, " + (way.tight ? "tight" : "unlimited") +
         ", checkpointing " + (way.checkpoint ? "on" : "off") + (way.cut ? ", cut" : "");
}

// The common part: six steps that accumulate.
inline Arguments StepsOf(const Training& training, const std::string& precision) {
  return training.Train(6) +
         Arguments{"--precision", precision, "--accumulate", "2", "--batch", "2"};
}

inline Numbers NumbersInMemory(const std::string& precision) {
  const Training training;
  const Ended ended = RunCommand(StepsOf(training, precision));
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  return training.NumbersOf(ended.json());
}

// The smallest budgets that the command names for this model.
inline Arguments SmallestBudgets(const Arguments& arguments) {
  Arguments budgets;
  for (const char* flag : {"--device-bytes", "--pinned-bytes"}) {
    const Ended refused = RunCommand(arguments + budgets + Arguments{flag, "1"});
    budgets = budgets + Arguments{flag, BytesNamedIn(refused.err)};
  }
  return budgets;
}

inline void ExpectSameNumbers(const Way& way, const Numbers& expected) {
  SCOPED_TRACE(Describe(way));
  const Training training;
  std::string stores = training.store();
  if (way.folders == 2) stores += "," + training / "second";
  Arguments arguments = StepsOf(training, way.precision) + Arguments{"--store",
                                                                     stores,
                                                                     "--page-bytes",
                                                                     way.page_bytes,
                                                                     "--io",
                                                                     way.io,
                                                                     "--checkpoint-activations",
                                                                     way.checkpoint ? "on" : "off"};
  if (way.tight) arguments = arguments + SmallestBudgets(arguments);
  if (way.cut) {
    const Ended first = RunCommand(arguments + Arguments{"--stop-after", "2"});
    ASSERT_EQ(first.exit_code, 0) << first.err;
    arguments.push_back("--resume");
  }
  const Ended ended = RunCommand(arguments);
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(training.NumbersOf(ended.json()), expected);
}

}  // namespace spillway::test

#endif  // SPILLWAY_TESTS_SPILLWAY_SAME_NUMBERS_H_
