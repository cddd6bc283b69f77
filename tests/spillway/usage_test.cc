// SPDX-License-Identifier: Apache-2.0
//
// The command line itself: help, version, and arguments that are refused before any file is read.

#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/spillway/command.h"

namespace spillway::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::IsSupersetOf;
using ::testing::StartsWith;

TEST(Usage, HelpComesWithExamplesFirst) {
  for (const Arguments& arguments : std::vector<Arguments>{{"--help"},
                                                           {"train", "--help"},
                                                           {"report", "--help"},
                                                           {"eval", "--help"},
                                                           {"generate", "-h"}}) {
    const Ended ended = RunCommand(arguments);
    EXPECT_EQ(ended.exit_code, 0);
    EXPECT_THAT(ended.err, IsEmpty());
    const size_t examples = ended.out.find("Examples:");
    const size_t options =
        ended.out.find(arguments[0] == "train" ? "What most runs need:" : "Options:");
    ASSERT_NE(examples, std::string::npos) << ended.out;
    ASSERT_NE(options, std::string::npos) << ended.out;
    EXPECT_LT(examples, options);
  }
}

TEST(Usage, VersionIsOneLineOnStdout) {
  const Ended ended = RunCommand({"--version"});
  EXPECT_EQ(ended.exit_code, 0);
  EXPECT_THAT(ended.out, StartsWith("spillway "));
  EXPECT_EQ(ended.out.find('\n'), ended.out.size() - 1);
}

TEST(Usage, EveryFlagOfTrainIsInItsHelp) {
  const std::string help = RunCommand({"train", "--help"}).out;
  for (const char* flag : {"--model",
                           "--data",
                           "--store",
                           "--store-bytes",
                           "--device-bytes",
                           "--pinned-bytes",
                           "--steps",
                           "--stop-after",
                           "--seq",
                           "--batch",
                           "--accumulate",
                           "--precision",
                           "--fp32",
                           "--lr",
                           "--warmup-steps",
                           "--schedule",
                           "--betas",
                           "--eps",
                           "--weight-decay",
                           "--optimizer",
                           "--momentum",
                           "--dampening",
                           "--nesterov",
                           "--centered",
                           "--amsgrad",
                           "--maximize",
                           "--state-format",
                           "--no-decay",
                           "--lr-for",
                           "--freeze",
                           "--lr-scale",
                           "--lr-batch",
                           "--clip",
                           "--loss-scale",
                           "--loss-scale-growth",
                           "--loss-scale-backoff",
                           "--loss-scale-interval",
                           "--order",
                           "--seed",
                           "--threads",
                           "--checkpoint-activations",
                           "--eval-every",
                           "--eval-batches",
                           "--commit-every",
                           "--page-bytes",
                           "--io",
                           "--place",
                           "--activation-tier",
                           "--device",
                           "--log-json",
                           "--trace",
                           "--save",
                           "--resume",
                           "--hash-weights",
                           "--json",
                           "--init",
                           "--grad-dtype"}) {
    EXPECT_THAT(help, HasSubstr(std::string("  ") + flag + " ")) << flag;
  }
}

// The flags under each heading of the help of train, in the order of the help.
std::vector<std::pair<std::string, std::vector<std::string>>> GroupsOfTrain() {
  std::vector<std::pair<std::string, std::vector<std::string>>> groups;
  const std::string help = RunCommand({"train", "--help"}).out;
  for (const absl::string_view line : absl::StrSplit(help.substr(help.find("\nWhat most")), '\n')) {
    if (!line.empty() && line[0] != ' ' && line.back() == ':') {
      groups.emplace_back(line.substr(0, line.size() - 1), std::vector<std::string>());
    } else if (absl::StartsWith(line, "  -")) {
      const absl::string_view names = absl::StripAsciiWhitespace(line);
      groups.back().second.emplace_back(names.substr(0, names.find(' ')));
    }
  }
  return groups;
}

TEST(Usage, TheHelpOfTrainShowsWhatMostRunsNeedFirst) {
  const auto groups = GroupsOfTrain();
  std::vector<std::string> names;
  for (const auto& [name, flags] : groups) names.push_back(name);
  EXPECT_THAT(names, ElementsAre("What most runs need", "Model and data", "Memory", "Training",
                                 "Optimizer", "Output", "Source of the flags"));
  EXPECT_THAT(groups[0].second,
              ElementsAre("-h,--help", "--model", "--data", "--store", "--device-bytes",
                          "--pinned-bytes", "--auto", "--steps", "--seq", "--batch", "--accumulate",
                          "--precision", "--lr", "--resume", "--save"));
  EXPECT_THAT(groups[2].second, IsSupersetOf({"--place", "--checkpoint-activations"}));
  EXPECT_THAT(groups[3].second, IsSupersetOf({"--threads", "--schedule"}));
  EXPECT_THAT(groups[4].second, IsSupersetOf({"--optimizer", "--freeze"}));
  EXPECT_THAT(groups[5].second, IsSupersetOf({"--commit-every", "--log-json", "--json"}));
  EXPECT_THAT(groups[6].second, ElementsAre("--config", "--print-config"));
}

TEST(Usage, WithoutACommandItSaysWhichThereAre) {
  const Ended ended = RunCommand({});
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_THAT(ended.out, IsEmpty());
  EXPECT_THAT(ended.err, HasSubstr("a command is needed"));
}

TEST(Usage, UnknownWordsSuggestTheNearest) {
  const std::vector<std::pair<Arguments, std::string>> cases = {
      {{"trian"}, "did you mean train?"},
      {{"train", "--modle", "x"}, "unknown option --modle; did you mean --model?"},
      {{"train", "--device-byte=1GiB"},
       "unknown option --device-byte; did you mean --device-bytes?"},
      {{"eval", "--batch", "4"}, "did you mean --batches?"},
      {{"train", "--zzzzzzzzzz"}, "unknown option --zzzzzzzzzz"},
      {{"train", "stray"}, "unknown argument stray"},
  };
  for (const auto& [arguments, expected] : cases) {
    const Ended ended = RunCommand(arguments);
    EXPECT_EQ(ended.exit_code, 2) << expected;
    EXPECT_THAT(ended.err, HasSubstr(expected));
    EXPECT_THAT(ended.out, IsEmpty());
  }
}

TEST(Usage, AnArgumentThatEqualsTheNameOfACommandIsAnArgument) {
  const std::vector<std::pair<Arguments, std::string>> cases = {
      {{"inspect", "train"}, "train"},
      {{"fsck", "remove"}, "remove"},
      {{"snapshot", "list", "inspect"}, "inspect"},
      {{"snapshot", "restore", "/nonexistent/run", "drop"}, "/nonexistent/run"},
      {{"snapshot", "create", "/nonexistent/run", "list"}, "/nonexistent/run"},
  };
  for (const auto& [arguments, store] : cases) {
    const Ended ended = RunCommand(arguments);
    EXPECT_EQ(ended.exit_code, 1) << arguments[1];
    EXPECT_THAT(ended.err, HasSubstr("open store folder " + store + " ("));
    EXPECT_THAT(ended.out, IsEmpty());
  }
  EXPECT_THAT(RunCommand({"bench", "training"}).err, HasSubstr("unknown argument training"));
}

TEST(Usage, ArgumentsOutsideOfTheCommandAreRefused) {
  const std::vector<std::pair<Arguments, std::string>> cases = {
      {{"--bogus", "inspect", "two"}, "unknown option --bogus before the command inspect"},
      {{"--json", "inspect", "two"}, "unknown option --json before the command inspect"},
      {{"stray", "inspect", "two"}, "unknown argument stray before the command inspect"},
      {{"snapshot", "--json", "list", "two"}, "unknown option --json before the command list"},
      {{"train", "--", "stray"}, "unknown argument stray"},
      {{"train", "--", "--version"}, "unknown argument --version; after -- nothing is an option"},
      {{"--", "--version"}, "unknown argument --version; after -- nothing is an option"},
      {{"inspect", "two", "--", "--json"}, "unknown option --json"},
      {{"inspect", "two", "--", "three"}, "unknown argument three"},
      {{"inspect", "two", "++", "three"}, "unknown argument ++"},
      {{"snapshot", "create", "two", "--", "-label"}, "the label '-label' begins with '-'"},
      {{"snapshot", "restore", "two", "a", "--keep", "-label"}, "label '-label' begins with '-'"},
  };
  for (const auto& [arguments, expected] : cases) {
    const Ended ended = RunCommand(arguments);
    EXPECT_EQ(ended.exit_code, 2) << expected;
    EXPECT_THAT(ended.err, HasSubstr(expected));
    EXPECT_THAT(ended.out, IsEmpty());
  }
}

TEST(Usage, WhatFollowsTwoDashesIsAnArgument) {
  const std::string log = std::string(SPILLWAY_COMMAND_CORPUS) + "/report/good_log.jsonl";
  const std::vector<std::pair<Arguments, std::string>> cases = {
      {{"inspect", "--", "no-store"}, "open store folder no-store ("},
      {{"inspect", "--", "-no-store"}, "open store folder -no-store ("},
      {{"inspect", "--json", "--", "--help"}, "open store folder --help ("},
      {{"inspect", "--", "++"}, "open store folder ++ ("},
      {{"--", "inspect", "no-store"}, "open store folder no-store ("},
      {{"snapshot", "restore", "no-store", "--keep", "a", "--", "-b"},
       "open store folder no-store ("},
      {{"report", log, "--", "-no-log"}, "-no-log"},
  };
  for (const auto& [arguments, expected] : cases) {
    const Ended ended = RunCommand(arguments);
    EXPECT_EQ(ended.exit_code, 1) << expected << ended.err;
    EXPECT_THAT(ended.err, HasSubstr(expected));
  }
}

// A flag, a value and a part of the message.
class BadValue
    : public ::testing::TestWithParam<std::tuple<const char*, const char*, const char*>> {};

TEST_P(BadValue, IsRefusedWithWhatIsAccepted) {
  const auto [flag, value, expected] = GetParam();
  Arguments arguments = {"train", "--model", "m", "--data", "d"};
  if (std::string(flag) != "--steps") arguments.push_back("--steps=1");
  arguments.push_back(std::string(flag) + "=" + value);
  const Ended ended = RunCommand(arguments);
  EXPECT_EQ(ended.exit_code, 2) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr(flag));
  EXPECT_THAT(ended.err, HasSubstr(expected));
  EXPECT_THAT(ended.out, IsEmpty());
}

INSTANTIATE_TEST_SUITE_P(
    All, BadValue,
    ::testing::Values(
        std::tuple{"--lr", "nan", "from 0 to 10"}, std::tuple{"--lr", "inf", "from 0 to 10"},
        std::tuple{"--lr", "-1e-4", "from 0 to 10"}, std::tuple{"--lr", "1e-4x", "from 0 to 10"},
        std::tuple{"--lr", "0x1p-3", "from 0 to 10"}, std::tuple{"--lr", "1,5", "from 0 to 10"},
        std::tuple{"--steps", "-1", "from 0"}, std::tuple{"--steps", "1e3", "whole number"},
        std::tuple{"--batch", "0", "from 1"}, std::tuple{"--batch", "-3", "from 1"},
        std::tuple{"--batch", "99999999999999999999", "from 1"},
        std::tuple{"--seq", "1.5", "whole number"}, std::tuple{"--seq", "0", "whole number"},
        std::tuple{"--accumulate", "0", "whole number"},
        std::tuple{"--accumulation-order", "rows", "auto|micro-batch|layer"},
        std::tuple{"--threads", "0", "whole number"},
        std::tuple{"--threads", "1000000", "whole number"},
        std::tuple{"--betas", "0.9", "0.9,0.95"}, std::tuple{"--betas", "0.9,1", "0.9,0.95"},
        std::tuple{"--betas", "0.9,0.95,0.99", "0.9,0.95"}, std::tuple{"--eps", "0", "above 0"},
        std::tuple{"--weight-decay", "-0.1", "from 0"}, std::tuple{"--clip", "-1", "at least 0"},
        std::tuple{"--optimizer", "adamax", "adamw|adam|sgd|rmsprop|lion|lamb|lars|adafactor"},
        std::tuple{"--state-format", "fp8", "fp32|bf16|8bit|compact"},
        std::tuple{"--momentum", "1", "below 1"},
        std::tuple{"--lr-for", "norm", "not PATTERN=FACTOR"},
        std::tuple{"--lr-for", "=2", "not PATTERN=FACTOR"},
        std::tuple{"--lr-for", "a=1,b=1e300", "from 0 to 1e+06"},
        std::tuple{"--lr-for", "a=-1", "from 0 to 1e+06"},
        std::tuple{"--lr-for", "a=nan", "from 0 to 1e+06"},
        std::tuple{"--no-decay", "a,,b", "empty part"},
        std::tuple{"--lr-scale", "cubic", "none|linear|sqrt"},
        std::tuple{"--lr-batch", "0", "whole number"}, std::tuple{"--clip", "nan", "at least 0"},
        std::tuple{"--loss-scale", "0", "from 5.96046e-08"},
        std::tuple{"--loss-scale", "1e-40", "from 5.96046e-08"},
        std::tuple{"--loss-scale", "1e-60", "from 5.96046e-08"},
        std::tuple{"--loss-scale-growth", "0.5", "from 1"},
        std::tuple{"--loss-scale-backoff", "1", "below 1"},
        std::tuple{"--schedule", "linear", "constant|cosine"},
        std::tuple{"--precision", "fp8", "fp32|fp16-amp|bf16"},
        std::tuple{"--order", "random", "sequential|shuffled"},
        std::tuple{"--io", "aio", "uring|posix|auto"},
        std::tuple{"--checkpoint-activations", "yes", "on|off"}, std::tuple{"--seed", "-1", "2^64"},
        std::tuple{"--device-bytes", "lots", "lots"}, std::tuple{"--device-bytes", "-1", "-1"},
        std::tuple{"--pinned-bytes", "1.5QB", "1.5QB"},
        std::tuple{"--page-bytes", "5000", "multiple of 4 KiB"},
        std::tuple{"--store", "a,,b", "empty"}, std::tuple{"--store", "a,a", "twice"},
        std::tuple{"--store-bytes", "1GiB", "--store"}, std::tuple{"--resume", "true", "--store"},
        std::tuple{"--commit-every", "5", "--store"},
        std::tuple{"--grad-dtype", "fp16", "fp16-amp"},
        std::tuple{"--grad-dtype", "bf16", "needs --precision bf16"},
        std::tuple{"--fp32", "*norm*", "does nothing under --precision fp32"}));

TEST(Usage, WhatIsNeededIsNamed) {
  EXPECT_THAT(RunCommand({"train", "--data", "d", "--steps", "1"}).err,
              HasSubstr("--model is needed"));
  EXPECT_THAT(RunCommand({"train", "--model", "m", "--steps", "1"}).err,
              HasSubstr("--data is needed"));
  EXPECT_THAT(RunCommand({"train", "--model", "m", "--data", "d"}).err,
              HasSubstr("--steps is needed"));
  EXPECT_THAT(RunCommand({"eval", "--data", "d"}).err, HasSubstr("--model is needed"));
  EXPECT_THAT(RunCommand({"eval", "--model", "m"}).err, HasSubstr("--data is needed"));
}

TEST(Usage, AFlagGivenTwiceIsRefused) {
  const Ended ended = RunCommand({"train", "--lr", "1e-3", "--lr", "1e-4"});
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_THAT(ended.err, HasSubstr("--lr is given more than once"));
}

TEST(Usage, AFlagWithoutItsValueIsRefused) {
  const Ended ended = RunCommand({"train", "--seq"});
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_THAT(ended.err, HasSubstr("--seq needs a value"));
}

TEST(Usage, AMicroBatchBeyondReasonIsRefused) {
  const Ended ended = RunCommand({"train", "--model", "m", "--data", "d", "--steps", "1", "--batch",
                                  "65536", "--seq", "65536"});
  EXPECT_EQ(ended.exit_code, 2);
  EXPECT_THAT(ended.err, HasSubstr("--accumulate"));
}

TEST(Usage, ADeviceIsHostOrCuda) {
  for (const char* device : {"gpu", "cuda:", "cuda:-1", "cuda:1x", "cuda:99999999999"}) {
    const Ended ended = RunCommand({"train", "--device", device});
    EXPECT_EQ(ended.exit_code, 2) << device;
    EXPECT_THAT(ended.err, HasSubstr("is not host, cuda or cuda:N")) << device;
  }
}

}  // namespace
}  // namespace spillway::test
