// SPDX-License-Identifier: Apache-2.0
//
// The messages and exit codes for a damaged or wrongly named store. They are the same in every
// command.

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
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
using ::testing::Not;

class HostileMessages : public ::testing::Test {
 protected:
  // Expects this exit code and these words from train and from other commands that open a store.
  void ExpectOfAll(const std::string& store, int code, const std::string& words) const {
    for (const Arguments& arguments :
         {training_.Train(3) + Arguments{"--store", store, "--resume"}, Arguments{"inspect", store},
          Arguments{"fsck", store}, Arguments{"snapshot", "list", store},
          Arguments{"trim", store}}) {
      const Ended ended = RunCommand(arguments);
      EXPECT_EQ(ended.exit_code, code) << arguments[0] << ": " << ended.err;
      EXPECT_THAT(ended.err, HasSubstr(words)) << arguments[0];
    }
  }
  void Train(const std::string& store) const {
    const Ended ended = RunCommand(training_.Train(2) + Arguments{"--store", store});
    ASSERT_EQ(ended.exit_code, 0) << ended.err;
  }

  const Training training_;
  const std::string a_ = training_ / "a";
  const std::string b_ = training_ / "b";
};

TEST_F(HostileMessages, ACatalogThatIsGone) {
  Train(a_);
  fs::remove(a_ + "/spillway-catalog.sqlite");
  ExpectOfAll(a_, 4, "spillway-catalog.sqlite is missing");
}

TEST_F(HostileMessages, FoldersInTheWrongOrder) {
  Train(a_ + "," + b_);
  ExpectOfAll(b_ + "," + a_, 2, "name them in this order: ");
}

TEST_F(HostileMessages, OneFolderOfTwoIsAnother) {
  Train(a_ + "," + b_);
  fs::remove_all(b_);
  fs::create_directory(b_);
  ExpectOfAll(a_ + "," + b_, 1, "is a disk not mounted");
}

TEST_F(HostileMessages, AnIdentityThatIsGone) {
  Train(a_);
  fs::remove(a_ + "/spillway-store");
  ExpectOfAll(a_, 4, "whose identity (spillway-store) is missing");
  EXPECT_TRUE(fs::exists(a_ + "/spillway-segment-000000"));
}

TEST_F(HostileMessages, ASegmentThatIsGone) {
  Train(a_);
  fs::remove(a_ + "/spillway-segment-000000");
  for (const Arguments& arguments :
       {training_.Train(3) + Arguments{"--store", a_, "--resume"}, Arguments{"fsck", a_},
        Arguments{"snapshot", "create", a_, "x"},
        Arguments{"snapshot", "export", a_, "--save", training_ / "out"}}) {
    const Ended ended = RunCommand(arguments);
    EXPECT_EQ(ended.exit_code, 4) << arguments[0] << ": " << ended.err;
    EXPECT_THAT(ended.out + ended.err,
                ::testing::ContainsRegex("spillway-segment-000000:?( it)? is missing"));
  }
  const Ended trimmed = RunCommand({"trim", a_});
  EXPECT_EQ(trimmed.exit_code, 0) << trimmed.err;
  EXPECT_THAT(trimmed.err, HasSubstr("spillway-segment-000000 is missing"));
  EXPECT_EQ(RunCommand({"fsck", a_}).exit_code, 4) << "pages lie in it";
}

TEST_F(HostileMessages, AFolderNamedTwice) {
  Train(a_);
  for (const char* command : {"inspect", "fsck", "trim", "remove"}) {
    const Ended ended = RunCommand({command, a_ + "," + a_});
    EXPECT_EQ(ended.exit_code, 2) << command << ended.err;
    EXPECT_THAT(ended.err, HasSubstr("are the same folder; name each once")) << command;
  }
}

constexpr char kOtherUser[] = "setpriv --reuid 65534 --regid 65534 --clear-groups";

// Returns why another user cannot run the command in `folder`, or "" if it can.
std::string WhyNoOtherUser(const std::string& folder) {
  if (geteuid() != 0) return "becoming another user needs root";
  if (RunInShell(kOtherUser, {"--version"}).exit_code != 0)
    return "another user cannot run " + CommandPath();
  for (fs::path path = fs::absolute(folder); path != path.root_path(); path = path.parent_path()) {
    if ((fs::status(path).permissions() & fs::perms::others_exec) == fs::perms::none)
      return "another user cannot enter " + path.string();
  }
  return "";
}

TEST_F(HostileMessages, AnotherUserSeesThatARunHasTheStore) {
  fs::permissions(training_ / ".", fs::perms{0755});
  if (const std::string why = WhyNoOtherUser(training_ / ""); !why.empty()) GTEST_SKIP() << why;
  Command run(training_.Train(100'000'000) + Arguments{"--store", a_, "--commit-every", "1"});
  while (!run.has_ended() && ReadLog(training_.log()).size() < 4) usleep(2000);
  for (const Arguments& arguments :
       {Arguments{"inspect", a_, "--json"}, Arguments{"snapshot", "list", a_}}) {
    const Ended ended = RunInShell(kOtherUser, arguments);
    EXPECT_EQ(ended.exit_code, 0) << arguments[0] << ended.err;
    if (arguments[0] == "inspect") {
      EXPECT_THAT(ended.out, HasSubstr("process "));
    }
  }
}

// A command that only reads a store writes nothing, and other readers may run beside it.
TEST_F(HostileMessages, AnotherUserLooksBesideOneWhoLooks) {
  fs::permissions(training_ / ".", fs::perms{0755});
  if (const std::string why = WhyNoOtherUser(training_ / ""); !why.empty()) GTEST_SKIP() << why;
  Train(a_);
  const int fd = open((a_ + "/spillway-lock").c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(flock(fd, LOCK_EX | LOCK_NB), 0);
  const Ended ended = RunInShell(kOtherUser, {"inspect", a_});
  close(fd);
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
}

TEST_F(HostileMessages, SegmentsAlone) {
  Train(a_);
  fs::remove(a_ + "/spillway-store");
  fs::remove(a_ + "/spillway-catalog.sqlite");
  fs::remove(a_ + "/spillway-commit");
  ExpectOfAll(a_, 1, "neither an identity (spillway-store) nor a catalog");
  EXPECT_TRUE(fs::exists(a_ + "/spillway-segment-000000"));
}

TEST_F(HostileMessages, AResumeWithOtherNumbersIsWrongUsage) {
  Train(a_);
  const Arguments resume = training_.Train(3) + Arguments{"--store", a_, "--resume"};
  EXPECT_EQ(RunCommand(resume + Arguments{"--batch", "3"}).exit_code, 2);
  const Training other;
  nlohmann::json config = TinyConfig();
  config["intermediate_size"] = 64;
  WriteTinyModel(other.model(), config);
  const Ended ended = RunCommand(other.Train(3) + Arguments{"--store", a_, "--resume"});
  EXPECT_EQ(ended.exit_code, 2) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("--model"));
}

TEST_F(HostileMessages, ARefusedOpenLeavesNoLockFile) {
  Train(a_ + "," + b_);
  fs::remove(a_ + "/spillway-lock");
  fs::remove(b_ + "/spillway-lock");
  for (const std::string& store : {b_ + "," + a_, a_, b_}) {
    EXPECT_NE(RunCommand({"trim", store}).exit_code, 0);
    if (store.find(',') == std::string::npos) {  // remove takes folders in any order
      EXPECT_NE(RunCommand({"remove", store, "--yes"}).exit_code, 0);
    }
    EXPECT_FALSE(fs::exists(a_ + "/spillway-lock")) << store;
    EXPECT_FALSE(fs::exists(b_ + "/spillway-lock")) << store;
  }
}

TEST_F(HostileMessages, AnInterruptBeforeTheFirstStepSaysSo) {
  nlohmann::json config = TinyConfig();
  config["num_hidden_layers"] = 200;
  WriteTinyModel(training_.model(), config);
  Command command(training_.TrainInStore(100000));
  while (!command.has_ended() && !command.Catches(SIGINT)) usleep(1000);
  command.Signal(SIGINT);
  const Ended ended = command.Wait();
  EXPECT_EQ(ended.exit_code, 130) << ended.err;
  if (ended.err.find("step 1/") == std::string::npos) {
    EXPECT_THAT(ended.err, Not(HasSubstr("after a complete step")));
  }
}

TEST_F(HostileMessages, AnEmptyFolderNameIsWrongUsage) {
  for (const Arguments& arguments : {Arguments{"doctor", ""}, Arguments{"inspect", ""},
                                     Arguments{"fsck", ""}, Arguments{"remove", ""}}) {
    EXPECT_EQ(RunCommand(arguments).exit_code, 2) << arguments[0];
  }
}

TEST_F(HostileMessages, ATokenizerFolderThatIsNotThereIsAnError) {
  Train(a_);
  const Ended ended = RunCommand(
      {"snapshot", "export", a_, "--save", training_ / "out", "--model", "/nonexistent"});
  EXPECT_EQ(ended.exit_code, 1) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("/nonexistent"));
  EXPECT_FALSE(fs::exists(training_ / "out"));
}

}  // namespace
}  // namespace spillway::test
