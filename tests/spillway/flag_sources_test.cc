// SPDX-License-Identifier: Apache-2.0
//
// Flags from the command line, the environment and a file. Also shell completion and manual pages,
// which are made from the help.

#include <cstdint>
#include <cstdlib>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/exhaustive.h"
#include "tests/seed.h"
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

// Returns the lines that give a value, without the value's source.
std::string ValuesIn(const std::string& printed) {
  std::string values;
  for (const absl::string_view line : absl::StrSplit(printed, '\n')) {
    const size_t source = line.rfind("  # ");
    if (!line.empty() && line.front() != '#')
      absl::StrAppend(&values, line.substr(0, source), "\n");
  }
  return values;
}

TEST_F(FlagSources, OddValuesArePrintedAndReadAsTheyAre) {
  std::vector<std::string> values = {"a#b", "a\\b",      "a\"b",   "a'b",   "x\"\nbatch = \"3",
                                     "\"x", "[a]",       "-x",     "--seq", "=x",
                                     "a b", "a\\u00e9b", "\u00e9", "\t",    "\x01\x7f",
                                     "{}",  "%%",        "true",   "\r\n",  "a,b"};
  const uint64_t first = Seed();
  for (uint64_t seed = first; seed != first + 10; ++seed) {
    std::mt19937_64 random(seed);
    std::string value = "x";
    for (int i = 0; i < 8; ++i) value += values[random() % 20];
    values.push_back(value);
  }
  for (const std::string& value : values) {
    const Ended printed = RunCommand({"train", "--save", value, "--batch", "7", "--print-config"});
    ASSERT_EQ(printed.exit_code, 0) << value << printed.err;
    WriteFile(file_, printed.out);
    const Ended again = RunCommand({"train", "--config", file_, "--print-config"});
    ASSERT_EQ(again.exit_code, 0) << value << again.err;
    EXPECT_EQ(ValuesIn(again.out), ValuesIn(printed.out)) << value;
    EXPECT_THAT(again.out, HasSubstr("batch = \"7\"")) << value;
  }
}

TEST_F(FlagSources, AFilesTextIsItsText) {
  for (const auto& [text, printed] : {std::pair{"save = \"a#b\" # c\n", "save = \"a#b\"  # from"},
                                      {"save = \"a\\u00e9b\"\n", "save = \"a\u00e9b\"  # from"},
                                      {"save = 'a\\b'\n", "save = \"a\\\\b\"  # from"},
                                      {"betas = [0.8, 0.90]\n", "betas = \"0.8,0.90\"  # from"},
                                      {"json = false\n", "json = false  # from"}}) {
    WriteFile(file_, text);
    const Ended ended = Print("", {"--config", file_});
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_THAT(ended.out, HasSubstr(printed)) << text;
  }
}

TEST_F(FlagSources, ASwitchThatIsOffIsPrintedOff) {
  EXPECT_THAT(Print("", {"--json=false"}).out, HasSubstr("json = false  # from the command line"));
  EXPECT_THAT(Print("SPILLWAY_JSON=false", {}).out, HasSubstr("json = false  # from the environ"));
  const Ended off = RunCommand({"train", "--print-config=false"});
  EXPECT_EQ(off.exit_code, 2) << off.out;
}

TEST_F(FlagSources, WhatIsNotUtf8IsNotPrinted) {
  const Ended value = RunCommand({"train", "--save", "caf\xe9", "--print-config"});
  EXPECT_EQ(value.exit_code, 2);
  EXPECT_EQ(value.out, "");
  EXPECT_THAT(value.err, AllOf(HasSubstr("--save"), HasSubstr("UTF-8")));
}

TEST_F(FlagSources, TheNameOfTheFileAddsNoLine) {
  for (const std::string name : {"a\nseq = \"3", "caf\xe9"}) {
    WriteFile(training_ / name, "batch = 7\n");
    const Ended printed = Print("", {"--config", file_});
    const Ended odd = RunCommand({"train", "--config", training_ / name, "--print-config"});
    ASSERT_EQ(odd.exit_code, 0) << odd.err;
    WriteFile(file_, odd.out);
    const Ended again = RunCommand({"train", "--config", file_, "--print-config"});
    EXPECT_EQ(ValuesIn(again.out), ValuesIn(odd.out)) << again.err;
  }
}

TEST_F(FlagSources, HelpIsPrintedWhateverElseIsWrong) {
  for (const Arguments& more : {Arguments{"--help"}, {"-h"}, {"--seq", "x", "--help"}}) {
    const Ended ended = RunInShell("SPILLWAY_SEQ=abc", Arguments{"train"} + more);
    EXPECT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_THAT(ended.out, HasSubstr("--device-bytes"));
  }
  EXPECT_EQ(RunCommand({"train", "--config", "/nonexistent", "--help"}).exit_code, 0);
  // Here --help is the value of --save.
  EXPECT_THAT(Print("SPILLWAY_SEQ=7", {"--save", "--help"}).out,
              AllOf(HasSubstr("seq = \"7\""), HasSubstr("save = \"--help\"")));
}

TEST_F(FlagSources, WhatIsAddedStandsBeforeWhatIsGiven) {
  const Ended value = RunInShell("SPILLWAY_BATCH=7", {"train", "--print-config", "--seq"});
  EXPECT_EQ(value.exit_code, 2);
  EXPECT_THAT(value.err, HasSubstr("--seq needs a value"));
  EXPECT_THAT(RunInShell("SPILLWAY_BATCH=7", {"train", "--print-config", "--"}).out,
              HasSubstr("batch = \"7\""));
}

TEST_F(FlagSources, AVariableThatChangesNothingIsToldOnALine) {
  const Ended typo = Print("SPILLWAY_STEP=3", {});
  EXPECT_EQ(typo.exit_code, 0);
  EXPECT_EQ(typo.err,
            "warning: the environment's SPILLWAY_STEP changes nothing: no command has such a flag; "
            "did you mean SPILLWAY_STEPS?\n");
  for (const std::string name : {"RESUME", "FORCE", "CONFIG", "PRINT_CONFIG", "HELP"}) {
    const Ended ended = Print("SPILLWAY_" + name + "=true", {});
    EXPECT_EQ(ended.exit_code, 0) << name << ended.err;
    EXPECT_THAT(ended.err, AllOf(HasSubstr("warning: the environment's SPILLWAY_" + name),
                                 HasSubstr("counts only on the command line\n")));
  }
  // A flag of train, two flags of other commands, a variable of the tests, and an empty variable.
  for (const std::string name : {"SEQ=3", "TOKENS=3", "TENSORS=1", "TEST_SEED=3", "STEP="}) {
    EXPECT_EQ(Print("SPILLWAY_" + name, {}).err, "") << name;
  }
  const Ended inspected = RunInShell("SPILLWAY_SEQ=3 SPILLWAY_STEP=3", {"completion", "bash"});
  EXPECT_EQ(inspected.exit_code, 0);
  EXPECT_EQ(inspected.err, "");
  EXPECT_EQ(RunInShell("SPILLWAY_STEP=3", {"train", "--help"}).err, "");
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

TEST_F(FlagSources, AnAlternativeFromAnEarlierSourceReplacesAValue) {
  const std::string tokens = training_ / "tokens";
  WriteFile(file_, "tokens = '7'\n");
  const Arguments generate = {"generate", "--config", file_, "--print-config"};
  for (const auto& [environment, more] :
       {std::pair{"SPILLWAY_TOKENS=1,2", Arguments{"--tokens-file", tokens}},
        {"SPILLWAY_TOKENS_FILE=tokens", {}}}) {
    const Ended ended = RunInShell(environment, generate + more);
    ASSERT_EQ(ended.exit_code, 0) << ended.err;
    EXPECT_THAT(ended.out, AllOf(HasSubstr("tokens =  # not given"), HasSubstr("tokens-file = ")));
  }
  const Ended reverse =
      RunInShell("SPILLWAY_TOKENS_FILE=tokens", generate + Arguments{"--tokens", "3"});
  EXPECT_THAT(reverse.out, AllOf(HasSubstr("tokens = \"3\""), HasSubstr("# tokens-file =  #")));
  // --place says more than its alternative.
  WriteFile(file_, "place = 'activations=nvme,moments=nvme'\n");
  EXPECT_THAT(
      Print("", {"--config", file_, "--activation-tier", "pinned"}).out,
      AllOf(HasSubstr("place = \"moments=nvme\""), HasSubstr("activation-tier = \"pinned\"")));
  EXPECT_THAT(Print("SPILLWAY_PLACE=activations=nvme", {"--activation-tier", "pinned"}).out,
              HasSubstr("# place =  # not given"));
  EXPECT_THAT(Print("SPILLWAY_ACTIVATION_TIER=pinned", {"--place", "activations=nvme"}).out,
              HasSubstr("# activation-tier =  # not given"));
  EXPECT_THAT(Print("SPILLWAY_ACTIVATION_TIER=pinned", {"--place", "moments=nvme"}).out,
              HasSubstr("activation-tier = \"pinned\"  # from the environment's"));
}

TEST_F(FlagSources, AnErrorOfARunNamesTheSourcesOfItsFlags) {
  const Ended commits = RunInShell("SPILLWAY_COMMIT_EVERY=8", training_.Train(1));
  EXPECT_EQ(commits.exit_code, 2);
  EXPECT_THAT(commits.err, HasSubstr("; --commit-every is from the environment's "
                                     "SPILLWAY_COMMIT_EVERY\n"));
  const Ended line =
      RunInShell("SPILLWAY_COMMIT_EVERY=8", training_.Train(1) + Arguments{"--commit-every", "4"});
  EXPECT_EQ(line.exit_code, 2);
  EXPECT_THAT(line.err, Not(HasSubstr("SPILLWAY_COMMIT_EVERY")));
  WriteFile(file_, "activation-tier = 'pinned'\nplace = 'activations=nvme'\n");
  const Ended pair = RunCommand(training_.Train(1) + Arguments{"--config", file_});
  EXPECT_EQ(pair.exit_code, 2);
  EXPECT_THAT(pair.err, AllOf(HasSubstr("contradicts"), HasSubstr("--place is from " + file_),
                              HasSubstr("--activation-tier is from " + file_)));
  // --lr is not --lr-scale.
  const Ended other = RunInShell("SPILLWAY_LR=1 SPILLWAY_LR_SCALE=linear", training_.Train(1));
  EXPECT_EQ(other.exit_code, 2);
  EXPECT_THAT(other.err, AllOf(HasSubstr("--lr-scale is from"), Not(HasSubstr("--lr is from"))));
}

TEST_F(FlagSources, AFileThatIsWrongIsRefused) {
  for (const auto& [text, words] :
       {std::pair{"sequ = 3\n", "did you mean seq?"},
        {"force = true\n", "'force' counts only on the command line"},
        {"\nresume = true\n", "line 2: 'resume' counts only on"},
        {"help = true\n", "'help' counts only on the command line"},
        {"config = 'a'\n", "'config' counts only on the command line"},
        {"print-config = true\n", "'print-config' counts only on"},
        {"seq = 3\nseq = 4\n", "line 2: 'seq' is there twice"},
        {"save = ['a', 'b']\n", "'save' takes one value"},
        {"store = ['a,b', 'c']\n", "'store' has a comma"},
        {"save = ''\njson = true\n", "--save: an empty value; --save is from"},
        {"save = \"x\n", "no closing \""},
        {"save = a b\n", "text needs quotes"},
        {"\xff\xfe\n", "UTF-8"},
        {"seq = 3\n++", "line 2: this is no key = value"},
        {"--\n", "line 1: this is no key = value"},
        {"[train]\nseq = 3\n", "section"}}) {
    WriteFile(file_, text);
    const Ended ended = Print("", {"--config", file_});
    EXPECT_EQ(ended.exit_code, 2) << text << ended.out;
    EXPECT_THAT(ended.err, AllOf(HasSubstr(words), HasSubstr(file_))) << text;
  }
  for (const std::string& path :
       {training_ / "none.toml", training_ / ".", std::string("/dev/zero")}) {
    const Ended ended = Print("", {"--config", path});
    EXPECT_EQ(ended.exit_code, 2) << path;
    EXPECT_THAT(ended.err, HasSubstr("--config " + path));
  }
}

// Such a file once took 20 GB of memory.
TEST_F(FlagSources, ADeepSectionTakesNoMemory) {
  std::string text = "[";
  for (int i = 0; i < 100000; ++i) text += "a.";
  WriteFile(file_, text + "b]\nseq = 3\n");
  const std::string limit = SPILLWAY_IS_SANITIZED ? "" : "ulimit -v 3000000;";
  EXPECT_EQ(RunInShell(limit, {"train", "--config", file_, "--print-config"}).exit_code, 2);
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

  // Returns the completions of word number `at` of `words`, and error messages. `words` are split
  // as bash splits them.
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
  EXPECT_EQ(Complete("spillway bench ''", 2), "io tiers update train\n");
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
  WriteFile(folder_ / "two words", "");
  EXPECT_EQ(Complete("spillway inspect two", 2), "two words\n");
}

TEST(Man, EachCommandHasAPageWithItsFlags) {
  const Ended page = RunCommand({"man", "spillway-train"});
  ASSERT_EQ(page.exit_code, 0) << page.err;
  EXPECT_THAT(page.out, AllOf(HasSubstr(".TH spillway\\-train 1"), HasSubstr(".SH OPTIONS"),
                              HasSubstr(".SS Memory\n"), HasSubstr("\\-\\-device\\-bytes")));
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
