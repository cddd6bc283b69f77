// SPDX-License-Identifier: Apache-2.0
//
// Flags from the command line, the environment and a file; completion and manual pages from the
// help.

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/spillway/command.h"
#include "tests/spillway/training.h"

namespace spillway::test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsSupersetOf;
using ::testing::Not;

class FlagSources : public ::testing::Test {
 protected:
  Ended Print(const std::string& environment, const Arguments& arguments) const {
    return RunInShell(environment, Arguments{"train"} + arguments + Arguments{"--print-config"});
  }
  const Training training_;
  const std::string file_ = training_ / "run.toml";
};

TEST_F(FlagSources, TheCommandLineIsBeforeTheEnvironmentBeforeTheFileBeforeTheDefault) {
  WriteFile(file_, "seq = 11\nbatch = 12\naccumulate = 13\nprecision = \"fp16-amp\"\n");
  const Ended ended =
      Print("SPILLWAY_SEQ=21 SPILLWAY_BATCH=22", {"--config", file_, "--seq", "31", "--json"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.out,
              AllOf(HasSubstr("seq = \"31\"  # from the command line\n"),
                    HasSubstr("batch = \"22\"  # from the environment's SPILLWAY_BATCH\n"),
                    HasSubstr("accumulate = \"13\"  # from " + file_ + "\n"),
                    HasSubstr("precision = \"fp16-amp\"  # from " + file_ + "\n"),
                    HasSubstr("json = true  # from the command line\n"),
                    HasSubstr("hash-weights = false  # default\n"),
                    HasSubstr("clip = \"1\"  # default\n"), HasSubstr("# store =  # not given\n")));
}

TEST_F(FlagSources, WhatIsPrintedIsRead) {
  const Arguments arguments = training_.Train(3);
  const Ended printed = RunCommand(arguments + Arguments{"--print-config"});
  ASSERT_EQ(printed.exit_code, 0) << printed.err;
  WriteFile(file_, printed.out);
  const Ended expected = RunCommand(arguments);
  const Ended ended = RunCommand({"train", "--config", file_});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(ended.json()["weights_hash"], expected.json()["weights_hash"]);
  const Ended again = RunCommand({"train", "--config", file_, "--print-config"});
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("steps = \"3\"  # from " + file_));
}

TEST_F(FlagSources, AWrongValueNamesWhereItIsFrom) {
  WriteFile(file_, "seq = 0\n");
  const Ended file = Print("", {"--config", file_});
  EXPECT_EQ(file.exit_code, 2);
  EXPECT_THAT(file.err, AllOf(HasSubstr("--seq"), HasSubstr("from " + file_)));
  const Ended variable = Print("SPILLWAY_JSON=perhaps", {});
  EXPECT_EQ(variable.exit_code, 2);
  EXPECT_THAT(variable.err, AllOf(HasSubstr("--json"), HasSubstr("SPILLWAY_JSON")));
  const Ended line = Print("SPILLWAY_SEQ=7", {"--seq", "0"});
  EXPECT_THAT(line.err, AllOf(HasSubstr("--seq"), Not(HasSubstr("SPILLWAY_SEQ"))));
}

TEST_F(FlagSources, AFileThatIsWrongIsRefused) {
  for (const auto& [text, words] : {std::pair{"sequ = 3\n", "did you mean seq?"},
                                    {"resume = true\n", "'resume' is no flag"},
                                    {"seq = 3\nseq = 4\n", "--seq"},
                                    {"[train]\nseq = 3\n", "section"}}) {
    WriteFile(file_, text);
    const Ended ended = Print("", {"--config", file_});
    EXPECT_EQ(ended.exit_code, 2) << text << ended.out;
    EXPECT_THAT(ended.err, HasSubstr(words)) << text;
  }
  for (const std::string& path :
       {training_ / "none.toml", training_ / ".", std::string("/dev/zero")}) {
    const Ended ended = Print("", {"--config", path});
    EXPECT_EQ(ended.exit_code, 2) << path;
    EXPECT_THAT(ended.err, HasSubstr("--config " + path));
  }
}

TEST_F(FlagSources, NoEnvironmentRemovesOrForces) {
  const Ended trained = RunCommand(training_.TrainInStore(1));
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_EQ(RunInShell("SPILLWAY_YES=true", {"remove", training_.store()}).exit_code, 2);
  WriteFile(training_ / "letter", "Dear Sir");
  const Ended ended = RunInShell("SPILLWAY_FORCE=true",
                                 training_.Train(1) + Arguments{"--trace", training_ / "letter"});
  EXPECT_EQ(ended.exit_code, 1) << ended.err;
}

class Completion : public ::testing::Test {
 protected:
  Completion() { WriteFile(folder_ / "completion", RunCommand({"completion", "bash"}).out); }

  // What completes the word number `at` of `words`, which are as bash parts them; errors, too.
  std::string Complete(const std::string& words, int at) const {
    const std::string answer = folder_ / "answer";
    WriteFile(folder_ / "ask", "cd " + folder_ / "" + "; source ./completion; COMP_WORDS=(" +
                                   words + "); COMP_CWORD=" + std::to_string(at) +
                                   "; _spillway; echo \"${COMPREPLY[@]}\"\n");
    EXPECT_EQ(std::system(("bash -u " + folder_ / "ask" + " >" + answer + " 2>&1").c_str()), 0);
    return ReadFile(answer);
  }
  const TempFolder folder_;
};

TEST_F(Completion, BashCompletesCommandsFlagsAndChoices) {
  EXPECT_EQ(Complete("spillway tra", 1), "train\n");
  EXPECT_THAT(Complete("spillway train --dev", 2), HasSubstr("--device-bytes"));
  EXPECT_EQ(Complete("spillway train --precision fp16", 3), "fp16-amp\n");
  EXPECT_EQ(Complete("spillway bench ''", 2), "io tiers\n");
  EXPECT_THAT(Complete("spillway bench io --no", 3), HasSubstr("--no-fio"));
  EXPECT_EQ(RunCommand({"completion"}).exit_code, 2);
  EXPECT_EQ(RunCommand({"completion", "fish"}).exit_code, 2);
}

TEST_F(Completion, AValueBehindAnEqualsSignIsCompletedAsOneWordAndAsThree) {
  EXPECT_EQ(Complete("spillway train --precision=fp16", 2), "--precision=fp16-amp\n");
  EXPECT_EQ(Complete("spillway train --precision = fp16", 4), "fp16-amp\n");
  EXPECT_THAT(Complete("spillway train --precision =", 3), HasSubstr("fp16-amp"));
  EXPECT_EQ(Complete("spillway train --save=ans", 2), "--save=answer\n");
  EXPECT_EQ(Complete("spillway train --save = ans", 4), "answer\n");
  EXPECT_EQ(Complete("spillway train --nothing=a", 2), "\n");
}

TEST_F(Completion, ArgumentsAreShellsPagesOrFiles) {
  EXPECT_EQ(Complete("spillway completion ''", 2), "bash zsh\n");
  EXPECT_EQ(Complete("spillway man spillway-bench-i", 2), "spillway-bench-io\n");
  EXPECT_THAT(Complete("spillway man ''", 2),
              AllOf(HasSubstr("spillway-train"), Not(HasSubstr("answer"))));
  EXPECT_EQ(Complete("spillway man --l", 2), "--list\n");
  EXPECT_EQ(Complete("spillway inspect ans", 2), "answer\n");
}

TEST(Man, EachCommandHasAPageWithItsFlags) {
  const Ended page = RunCommand({"man", "spillway-train"});
  ASSERT_EQ(page.exit_code, 0) << page.err;
  EXPECT_THAT(page.out, AllOf(HasSubstr(".TH spillway\\-train 1"), HasSubstr(".SH OPTIONS"),
                              HasSubstr("\\-\\-device\\-bytes")));
  EXPECT_EQ(RunCommand({"man"}).exit_code, 0);
  EXPECT_THAT(RunCommand({"man", "spillway-bench-io"}).out, HasSubstr("spillway\\-bench\\-io"));
  EXPECT_EQ(RunCommand({"man", "spillway-nothing"}).exit_code, 2);
}

TEST(Man, EveryPageThatIsListedIsThere) {
  const Ended list = RunCommand({"man", "--list"});
  ASSERT_EQ(list.exit_code, 0) << list.err;
  const std::vector<std::string> pages = absl::StrSplit(list.out, '\n', absl::SkipEmpty());
  EXPECT_THAT(pages, IsSupersetOf({"spillway", "spillway-train", "spillway-bench-io"}));
  for (const std::string& page : pages) {
    const Ended printed = RunCommand({"man", page});
    EXPECT_EQ(printed.exit_code, 0) << page;
    EXPECT_THAT(printed.out, HasSubstr(".SH OPTIONS")) << page;
  }
}

}  // namespace
}  // namespace spillway::test
