// SPDX-License-Identifier: Apache-2.0
//
// Ways to train that must give the same numbers as training in memory, however the bytes move. The
// table Choices lists everything in which ways can differ. Each row is one dimension of the grid.

#ifndef SPILLWAY_TESTS_SPILLWAY_SAME_NUMBERS_H_
#define SPILLWAY_TESTS_SPILLWAY_SAME_NUMBERS_H_

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "io/make_io_engine.h"
#include "tests/io/io_uring_here.h"
#include "tests/spillway/command.h"
#include "tests/spillway/training.h"

namespace spillway::test {

// One way for the bytes to move: the choice made in each dimension.
using Way = std::map<std::string, std::string>;

// The dimensions and their choices. A name that begins with -- is a flag, passed with the choice.
// ExpectSameNumbers interprets the other names.
inline const std::vector<std::pair<std::string, std::vector<std::string>>>& Choices() {
  static const std::vector<std::pair<std::string, std::vector<std::string>>> choices = {
      {"--precision", {"fp32", "fp16-amp", "bf16"}},
      {"--page-bytes", {"64KiB", "256KiB", "1MiB", "8MiB"}},
      {"--io", {"posix", "uring"}},
      {"--policy", {"planned", "demand"}},
      {"--checkpoint-activations", {"on", "off"}},
      {"folders", {"one", "two"}},
      {"budgets", {"smallest", "random", "unlimited"}},
      {"cut", {"no", "yes"}},  // whether the run is stopped and resumed
      {"--accumulation-order", {"micro-batch", "layer"}},
      {"--place",
       {"parameters=auto", "optimizer=nvme,gradients=pinned,parameters=device",
        "parameters=nvme,gradients=nvme,activations=nvme", "optimizer=pinned,activations=pinned",
        "gradients=device,moments=nvme"}},
  };
  return choices;
}

// Returns the first choice of each dimension.
inline Way FirstWay() {
  Way way;
  for (const auto& [name, choices] : Choices()) way[name] = choices.front();
  return way;
}

// Whether a way adds coverage. If everything fits, there is nothing to plan, so other policies add
// none. bf16 moves the same bytes as fp16, so other policies add none there either. Accumulation
// order and placement act above pages, I/O and folders, so the two groups do not vary together.
inline bool IsWorthIt(const Way& way) {
  const bool is_planned = way.at("--policy") == "planned";
  if (way.at("budgets") == "unlimited" && !is_planned) return false;
  if (way.at("--precision") == "bf16" && !is_planned) return false;
  const auto is_first = [&way, first = FirstWay()](std::initializer_list<const char*> names) {
    return std::all_of(names.begin(), names.end(),
                       [&](const char* name) { return way.at(name) == first.at(name); });
  };
  return is_first({"--accumulation-order", "--place"}) ||
         is_first({"--page-bytes", "--io", "folders"});
}

// Returns all ways that this machine can go: those with io_uring only if the kernel gives a ring.
inline std::vector<Way> AllWays() {
  std::vector<Way> ways = {{}};
  for (const auto& [name, choices] : Choices()) {
    std::vector<Way> longer;
    for (const Way& way : ways) {
      for (const std::string& choice : choices) {
        longer.push_back(way);
        longer.back()[name] = choice;
      }
    }
    ways = std::move(longer);
  }
  std::erase_if(ways, [](const Way& way) { return !IsWorthIt(way); });
  if (!io::CanRun(IoKind::kUring)) {
    std::erase_if(ways, [](const Way& way) { return way.at("--io") == "uring"; });
  }
  return ways;
}

// The arguments that all ways share: six steps with accumulation.
inline Arguments StepsOf(const Training& training) {
  return training.Train(6) + Arguments{"--accumulate", "2", "--batch", "2"};
}

inline Numbers NumbersInMemory(const std::string& precision) {
  const Training training;
  const Ended ended = RunCommand(StepsOf(training) + Arguments{"--precision", precision});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  return training.NumbersOf(ended.json());
}

// Returns flags for the budgets: none if unlimited, else the smallest that the command names for
// this model or, if random, up to four times as much.
inline Arguments Budgets(const Arguments& arguments, const std::string& choice,
                         std::mt19937_64& random) {
  Arguments budgets;
  if (choice == "unlimited") return budgets;
  for (const char* flag : {"--device-bytes", "--pinned-bytes"}) {
    const Ended refused = RunCommand(arguments + budgets + Arguments{flag, "1"});
    uint64_t bytes = std::stoull("0" + BytesNamedIn(refused.err));
    if (choice == "random") bytes += random() % (3 * bytes + 1);
    budgets = budgets + Arguments{flag, std::to_string(bytes)};
  }
  return budgets;
}

inline std::string Words(const Arguments& arguments) {
  std::string words;
  for (const std::string& argument : arguments) words += " " + argument;
  return words;
}

// Trains in this way, expects the numbers to be `expected`, and returns the run's summary.
inline Json ExpectSameNumbers(const Way& way, const Numbers& expected, std::mt19937_64& random) {
  const Training training;
  Arguments arguments = StepsOf(training);
  for (const auto& [name, choice] : way) {
    if (name.starts_with("--")) arguments = arguments + Arguments{name, choice};
  }
  const std::string second = way.at("folders") == "two" ? "," + training / "second" : "";
  arguments = arguments + Arguments{"--store", training.store() + second};
  arguments = arguments + Budgets(arguments, way.at("budgets"), random);
  SCOPED_TRACE("spillway" + Words(arguments) + (way.at("cut") == "yes" ? ", cut" : ""));
  if (way.at("cut") == "yes") {
    const Ended first = RunCommand(arguments + Arguments{"--stop-after", "2"});
    EXPECT_EQ(first.exit_code, 0) << first.err;
    arguments.push_back("--resume");
  }
  const Ended ended = RunCommand(arguments);
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  const Json json = ended.json();
  EXPECT_EQ(training.NumbersOf(json), expected);
  return json;
}

// Trains in each way and expects the numbers of training in memory.
inline void ExpectSameNumbers(const std::vector<Way>& ways, uint64_t seed) {
  const std::map<std::string, Numbers> expected = {{"fp32", NumbersInMemory("fp32")},
                                                   {"fp16-amp", NumbersInMemory("fp16-amp")},
                                                   {"bf16", NumbersInMemory("bf16")}};
  for (const auto& [precision, numbers] : expected) {
    ASSERT_EQ(numbers.steps.size(), 6U);
    EXPECT_TRUE(precision == "fp32" || numbers != expected.at("fp32")) << precision;
  }
  std::mt19937_64 random(seed);
  for (const Way& way : ways) ExpectSameNumbers(way, expected.at(way.at("--precision")), random);
}

}  // namespace spillway::test

#endif  // SPILLWAY_TESTS_SPILLWAY_SAME_NUMBERS_H_
