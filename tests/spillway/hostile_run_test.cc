// SPDX-License-Identifier: Apache-2.0
//
// No completed step may be lost: not because of a log that cannot be written, a closed terminal, a
// limit on file sizes, a disk that fills up before the export, or an error in a later step.

#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <future>
#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/spillway/command.h"
#include "tests/spillway/small_disk.h"
#include "tests/spillway/training.h"

namespace spillway::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

// Returns how often `part` occurs in `text`.
int Count(const std::string& text, const std::string& part) {
  int count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// Returns the arguments with another value for a flag.
Arguments With(Arguments arguments, const std::string& flag, const std::string& value) {
  for (size_t i = 0; i + 1 < arguments.size(); ++i) {
    if (arguments[i] == flag) arguments[i + 1] = value;
  }
  return arguments;
}

// More steps than a run takes until a test has seen the first one in the log and stops the run,
// even under load. Their log has more than the 64 KiB that a pipe holds.
constexpr int kSteps = 600;

class HostileRun : public ::testing::Test {
 protected:
  // Acts while the run is stopped after its first step.
  template <typename Action>
  void AfterTheFirstStep(Command* command, const Action& action) const {
    while (!command->has_ended() && ReadLog(training_.log()).empty()) usleep(1000);
    command->Signal(SIGSTOP);
    action();
    command->Signal(SIGCONT);
  }
  // Expects that the store's last commit is of `step`, and that a resumed run ends with the same
  // weights as an uninterrupted run.
  void ExpectCommitted(int64_t step, int64_t steps) const {
    const Training uncut;
    const Ended whole = RunCommand(uncut.TrainInStore(steps));
    ASSERT_EQ(whole.exit_code, 0) << whole.err;
    const Ended resumed = RunCommand(training_.TrainInStore(steps) + Arguments{"--resume"});
    ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
    EXPECT_EQ(resumed.json()["steps_this_run"], steps - step);
    EXPECT_EQ(resumed.json()["weights_hash"], whole.json()["weights_hash"]);
  }

  const Training training_;
};

TEST_F(HostileRun, ALogThatCannotBeWrittenIsToldOnceAndTheRunGoesOn) {
  const Ended ended = RunCommand(With(training_.TrainInStore(6), "--log-json", "/dev/full"));
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(Count(ended.err, "warning: --log-json: write /dev/full: No space left on device"), 1)
      << ended.err;
  EXPECT_EQ(ended.json()["lost_outputs"], Json::array({"/dev/full"}));
  EXPECT_EQ(ended.json()["steps"], 6);
  ExpectCommitted(6, 6);
}

TEST_F(HostileRun, ALostOutputWhoseNameIsNotUtf8IsInItsJson) {
  const std::string log = training_ / "caf\xe9";
  fs::create_symlink("/dev/full", log);
  const Ended ended = RunCommand(With(training_.Train(1), "--log-json", log));
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  ASSERT_FALSE(ended.json().is_discarded()) << ended.out;
  EXPECT_EQ(ended.json()["lost_outputs"], Json::array({training_ / "caf\xef\xbf\xbd"}));
}

TEST_F(HostileRun, ALogOnADiskThatFillsUpKeepsWholeLines) {
  if (geteuid() != 0) GTEST_SKIP() << "mounting a file system needs root";
  const SmallDisk disk(DiskKind::kTmpfs, 64, training_ / "disk");
  if (!disk.is_mounted()) GTEST_SKIP() << disk.why();
  const std::string log = disk.path() + "/x.jsonl";
  Shell("dd if=/dev/zero of=" + disk.path() + "/filler bs=1k count=52");
  const Ended ended = RunCommand(With(training_.TrainInStore(40), "--log-json", log));
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("warning: --log-json: write " + log));
  EXPECT_EQ(ended.json()["lost_outputs"], Json::array({log}));
  const auto lines = ReadLog(log);
  ASSERT_FALSE(lines.empty());
  EXPECT_LT(lines.size(), 40U);
  EXPECT_TRUE(ReadFile(log).ends_with("}\n"));
  ExpectCommitted(40, 40);
}

TEST_F(HostileRun, ATraceThatCannotBeWrittenIsTold) {
  const Ended ended = RunCommand(training_.TrainInStore(3) + Arguments{"--trace", "/dev/full"});
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_EQ(Count(ended.err, "warning: --trace: write /dev/full"), 1) << ended.err;
  EXPECT_EQ(ended.json()["steps"], 3);
}

TEST_F(HostileRun, AValidationThatFailsIsToldOnceAndTheRunGoesOn) {
  // The run reads this file at each evaluation. Cut short, it has fewer windows than its header
  // says.
  Command command(training_.TrainInStore(100000) +
                  Arguments{"--eval-every", "1", "--eval-batches", "2"});
  while (!command.has_ended() && ReadLog(training_.log()).size() < 2) usleep(1000);
  fs::resize_file(training_.data() + "/valid.npy", 150);
  const size_t damaged = ReadLog(training_.log()).size();
  while (!command.has_ended() && ReadLog(training_.log()).size() < damaged + 5) usleep(1000);
  command.Signal(SIGINT);
  const Ended ended = command.Wait();
  EXPECT_EQ(ended.exit_code, 130) << ended.err;
  EXPECT_EQ(Count(ended.err, "warning: the validation failed, and the run goes on"), 1)
      << ended.err;
}

TEST_F(HostileRun, AnErrorInALaterStepCommitsTheStepsBefore) {
  Command command(training_.TrainInStore(100000));
  while (!command.has_ended() && ReadLog(training_.log()).size() < 3) usleep(1000);
  fs::resize_file(training_.data() + "/train.npy", 200);  // the run reads it step by step
  const Ended ended = command.Wait();
  EXPECT_EQ(ended.exit_code, 1) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("steps before are committed, and --resume continues"));
  const auto lines = ReadLog(training_.log());
  WriteTinyData(training_.data());
  ExpectCommitted(static_cast<int64_t>(lines.size()), static_cast<int64_t>(lines.size()) + 2);
}

TEST_F(HostileRun, DataThatAreCutShortAfterACommitSayThatItStands) {
  Command command(training_.TrainInStore(100000) + Arguments{"--commit-every", "1"});
  while (!command.has_ended() && ReadLog(training_.log()).size() < 3) usleep(1000);
  fs::resize_file(training_.data() + "/train.npy", 200);
  const Ended ended = command.Wait();
  EXPECT_EQ(ended.exit_code, 1) << ended.err;
  EXPECT_THAT(ended.err, AllOf(HasSubstr("bytes early"), HasSubstr("; the last commit stands")));
}

TEST_F(HostileRun, ATerminalThatIsGoneEndsItWithACommit) {
  Command command(training_.TrainInStore(100000));
  while (!command.has_ended() && ReadLog(training_.log()).size() < 2) usleep(1000);
  command.Signal(SIGHUP);
  const Ended ended = command.Wait();
  EXPECT_EQ(ended.exit_code, 130) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("which is committed"));
  const auto steps = static_cast<int64_t>(ReadLog(training_.log()).size());
  ExpectCommitted(steps, steps + 1);
}

TEST_F(HostileRun, UnderNohupATerminalThatIsGoneEndsNothing) {
  const std::string pid_file = training_ / "pid";
  std::future<Ended> run = std::async(std::launch::async, [&] {
    return RunInShell("trap '' HUP; echo $$ >" + pid_file + "; exec",
                      training_.TrainInStore(100000));
  });
  // Waits until the log has so many lines or the run has ended.
  const auto await_lines = [&](size_t lines) {
    while (ReadLog(training_.log()).size() < lines &&
           run.wait_for(std::chrono::milliseconds(1)) == std::future_status::timeout) {
    }
  };
  await_lines(2);
  const pid_t pid = std::stoi(ReadFile(pid_file));
  EXPECT_EQ(kill(pid, SIGHUP), 0) << "the run ended too early";
  const size_t lines = ReadLog(training_.log()).size();
  await_lines(lines + 5);
  EXPECT_EQ(kill(pid, SIGINT), 0) << "the run ended at the SIGHUP";
  const Ended ended = run.get();
  EXPECT_EQ(ended.exit_code, 130) << ended.err;
  EXPECT_GE(ReadLog(training_.log()).size(), lines + 5);
}

TEST_F(HostileRun, AReaderThatGoesAwayEndsNothing) {
  // The log does not fit in the pipe, so the run cannot end before the reader does.
  const Ended ended = RunInShell(
      "", With(training_.TrainInStore(kSteps), "--log-json", "/dev/stderr"), "2>&1 | head -1");
  EXPECT_EQ(Count(ended.out, "\n"), 1) << ended.out;
  EXPECT_EQ(ended.exit_code, 1) << "the summary could not be printed";
  ExpectCommitted(kSteps, kSteps);
}

TEST_F(HostileRun, AReaderOfTheLogThatGoesAwayEndsNothing) {
  // The step log goes into a pipe whose reader ends after one line.
  const Ended ended = RunInShell("", With(training_.TrainInStore(200), "--log-json", "/dev/stderr"),
                                 "2>&1 >/dev/null | head -1");
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
  ExpectCommitted(200, 200);
}

TEST_F(HostileRun, APipeThatNobodyReadsIsRefused) {
  const std::string pipe = training_ / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  const Ended ended = RunCommand(training_.TrainInStore(2) + Arguments{"--trace", pipe});
  EXPECT_EQ(ended.exit_code, 1) << ended.err;
  EXPECT_THAT(ended.err, AllOf(HasSubstr("--trace"), HasSubstr("nobody reads this pipe")));
}

// A commit may be requested while a large model is still being read.
TEST_F(HostileRun, ARequestForACommitIsTakenAsSoonAsAnInterruptIs) {
  Command command(training_.TrainInStore(2));
  while (!command.has_ended()) {
    // The order matters: if SIGINT is caught, the later check must find that SIGUSR1 is caught too.
    const bool catches = command.Catches(SIGINT);
    EXPECT_TRUE(!catches || command.Catches(SIGUSR1) || command.has_ended());
    if (!ReadLog(training_.log()).empty()) break;
  }
  EXPECT_EQ(command.Wait().exit_code, 0);
}

TEST_F(HostileRun, AStoreThatSomebodyRemovesIsNotSaidToBeCommitted) {
  Command command(training_.TrainInStore(1'000'000) + Arguments{"--commit-every", "1"});
  while (!command.has_ended() && ReadLog(training_.log()).size() < 5) usleep(1000);
  fs::remove_all(training_.store());
  const Ended ended = command.Wait();
  EXPECT_EQ(ended.exit_code, 1) << ended.err;
  // The run may look while only some of the files are removed.
  EXPECT_THAT(ended.err, AllOf(AnyOf(HasSubstr("were removed while it was in use"),
                                     HasSubstr("was deleted while it is in use")),
                               Not(HasSubstr("which is committed"))));
}

TEST_F(HostileRun, AFullDiskLeavesTheOldPage) {
  if (geteuid() != 0) GTEST_SKIP() << "mounting a file system needs root";
  ASSERT_EQ(RunCommand(training_.Train(2)).exit_code, 0);
  const SmallDisk disk(DiskKind::kTmpfs, 1024, training_ / "disk");
  if (!disk.is_mounted()) GTEST_SKIP() << disk.why();
  const Arguments report = {"report", training_.log(), "--out", disk.path() + "/page.html"};
  ASSERT_EQ(RunCommand(report).exit_code, 0);
  const std::string before = ReadFile(disk.path() + "/page.html");
  Shell("dd if=/dev/zero of=" + disk.path() + "/filler bs=4k");
  const Ended ended = RunCommand(report);
  EXPECT_EQ(ended.exit_code, 1) << ended.err;
  EXPECT_TRUE(ReadFile(disk.path() + "/page.html") == before);
}

TEST_F(HostileRun, ALimitOfFileSizesIsAnErrorThatNamesIt) {
  const Ended ended = RunInShell("ulimit -f 32;", training_.TrainInStore(6));
  EXPECT_EQ(ended.exit_code, 1) << ended.err;
  EXPECT_THAT(ended.err, AllOf(HasSubstr("File too large"), HasSubstr("ulimit -f")));
  EXPECT_EQ(Count(ended.err, "spillway: "), 1) << ended.err;
}

TEST_F(HostileRun, ThePlaceOfAnExportIsLookedAtBeforeTheFirstStep) {
  WriteFile(training_ / "file", "mine");
  for (const std::string& save :
       {training_ / "file/x", std::string("/proc/x"), std::string("/proc/self/x/y"),
        training_ / std::string(300, 'n')}) {
    const Ended ended = RunCommand(training_.TrainInStore(2) + Arguments{"--save", save});
    EXPECT_EQ(ended.exit_code, 1) << save << ended.err;
    EXPECT_THAT(ended.err, AllOf(Not(HasSubstr("step 1/")), HasSubstr("--save"),
                                 HasSubstr("cannot be made"), Not(HasSubstr(".partial"))))
        << save;
    EXPECT_FALSE(fs::exists(training_.store())) << save;
  }
  EXPECT_EQ(ReadFile(training_ / "file"), "mine");
}

class SmallExport : public HostileRun {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "mounting a file system needs root";
    disk_.emplace(DiskKind::kTmpfs, 4096, training_ / "disk");
    if (!disk_->is_mounted()) GTEST_SKIP() << disk_->why();
  }
  // Runs with an export to a disk that is filled after the first step.
  Ended RunWithExport(const Arguments& arguments) {
    Command command(arguments + Arguments{"--save", disk_->path() + "/tuned"});
    AfterTheFirstStep(&command, [&] {
      Shell("dd if=/dev/zero of=" + disk_->path() +
            "/filler bs=4k count=" + std::to_string(1024 - 4));
    });
    return command.Wait();
  }
  std::optional<SmallDisk> disk_;
};

TEST_F(HostileRun, AnExportLargerThanAFileMayBeIsRefusedBeforeTheFirstStep) {
  const Ended ended =
      RunInShell("ulimit -f 8;", training_.Train(2) + Arguments{"--save", training_ / "tuned"});
  EXPECT_EQ(ended.exit_code, 1) << ended.err;
  EXPECT_THAT(ended.err, AllOf(HasSubstr("ulimit -f"), Not(HasSubstr("step 1/"))));
}

TEST_F(SmallExport, HasNoRoomBeforeTheRun) {
  Shell("dd if=/dev/zero of=" + disk_->path() + "/filler bs=4k");
  const Ended ended =
      RunCommand(training_.TrainInStore(2) + Arguments{"--save", disk_->path() + "/tuned"});
  EXPECT_EQ(ended.exit_code, 1) << ended.err;
  EXPECT_THAT(ended.err, AllOf(HasSubstr("No space left"), Not(HasSubstr("step 1/"))));
}

TEST_F(SmallExport, ThatFailsLeavesTheStore) {
  const Ended ended = RunWithExport(training_.TrainInStore(kSteps));
  ASSERT_EQ(ended.exit_code, 1) << ended.err;
  EXPECT_EQ(ended.json()["steps"], kSteps) << "the summary is printed all the same";
  EXPECT_THAT(ended.err, AllOf(HasSubstr("nothing is lost: the store " + training_.store()),
                               HasSubstr("spillway snapshot export")));
  const Ended again = RunCommand({"snapshot", "export", training_.store(), "--save",
                                  training_ / "tuned", "--model", training_.model()});
  EXPECT_EQ(again.exit_code, 0) << again.err;
}

TEST_F(HostileRun, ARunWithoutAStoreThatCannotExportKeepsOneBesideIt) {
  // The export's folder exists when the run ends, so that the export cannot take its name.
  const std::string save = training_ / "tuned";
  for (const Arguments& more :
       {Arguments{}, Arguments{"--store", training_.store(), "--durability", "none"}}) {
    fs::remove_all(save);
    fs::remove_all(save + ".store");
    fs::remove(training_.log());
    Command command(training_.Train(kSteps) + more + Arguments{"--save", save});
    AfterTheFirstStep(&command, [&] { fs::create_directories(save + "/taken"); });
    const Ended ended = command.Wait();
    ASSERT_EQ(ended.exit_code, 1) << ended.err;
    EXPECT_THAT(ended.err, HasSubstr("nothing is lost: the store " + save + ".store has"));
    const Ended resumed =
        RunCommand(training_.Train(kSteps) + Arguments{"--store", save + ".store", "--resume",
                                                       "--save", training_ / "elsewhere"});
    ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
    EXPECT_EQ(resumed.json()["steps_this_run"], 0);
    EXPECT_EQ(resumed.json()["weights_hash"], ended.json()["weights_hash"]);
    fs::remove_all(training_ / "elsewhere");
  }
}

TEST_F(HostileRun, TheStoreOfAnEarlierExportThatFailedIsLeftAlone) {
  const std::string save = training_ / "tuned";
  fs::create_directories(save + ".store/mine");
  Command command(training_.Train(kSteps) + Arguments{"--save", save});
  AfterTheFirstStep(&command, [&] { fs::create_directories(save + "/taken"); });
  const Ended ended = command.Wait();
  ASSERT_EQ(ended.exit_code, 1) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("nothing is lost: the store " + save + ".store-2 has"));
  EXPECT_EQ(RunCommand({"fsck", save + ".store-2"}).exit_code, 0);
}

TEST_F(SmallExport, OnAFullDiskLeavesItsStoreElsewhere) {
  const Ended ended = RunWithExport(training_.Train(kSteps));
  ASSERT_EQ(ended.exit_code, 1) << ended.err;
  const std::string words = "nothing is lost: the store ";
  ASSERT_THAT(ended.err, HasSubstr(words));
  const size_t at = ended.err.find(words) + words.size();
  const std::string store = ended.err.substr(at, ended.err.find(' ', at) - at);
  EXPECT_EQ(RunCommand({"fsck", store}).exit_code, 0) << store;
  fs::remove_all(store);
}

class FullStore : public HostileRun {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "mounting a file system needs root";
    disk_.emplace(DiskKind::kTmpfs, 8192, training_ / "disk");
    if (!disk_->is_mounted()) GTEST_SKIP() << disk_->why();
  }
  // Returns the arguments of a run with its store on a disk of its own and its export elsewhere.
  Arguments Run(int64_t steps) const {
    return training_.Train(steps) + Arguments{"--store", disk_->path() + "/store", "--save", save_};
  }
  // Fills the store's disk after the first step. The first commit is the one at the end.
  void Fill(Command* command) const {
    AfterTheFirstStep(command,
                      [&] { Shell("dd if=/dev/zero of=" + disk_->path() + "/filler bs=4k"); });
  }
  void ExpectStateBesideTheExport(const Ended& ended) const {
    ASSERT_EQ(ended.exit_code, 1) << ended.err;
    EXPECT_THAT(ended.err, AllOf(HasSubstr("No space left on device"),
                                 HasSubstr("nothing is lost: the store " + save_ + ".store has")));
    ASSERT_FALSE(ended.json().is_discarded()) << "the summary is printed all the same";
    const Ended resumed = RunCommand(training_.Train(ended.json()["steps"].get<int64_t>()) +
                                     Arguments{"--store", save_ + ".store", "--resume"});
    ASSERT_EQ(resumed.exit_code, 0) << resumed.err;
    EXPECT_EQ(resumed.json()["steps_this_run"], 0);
    EXPECT_EQ(resumed.json()["weights_hash"], ended.json()["weights_hash"]);
  }
  const std::string save_ = training_ / "tuned";
  std::optional<SmallDisk> disk_;
};

TEST_F(FullStore, AtTheLastCommitLeavesTheExportAndItsState) {
  Command command(Run(kSteps));
  Fill(&command);
  const Ended ended = command.Wait();
  EXPECT_THAT(ended.err, HasSubstr("the model is exported to " + save_));
  ExpectStateBesideTheExport(ended);
  const Ended evaluated = RunCommand(
      {"eval", "--model", save_, "--data", training_.data(), "--seq", "16", "--batches", "2"});
  EXPECT_EQ(evaluated.exit_code, 0) << evaluated.err;
}

TEST_F(FullStore, AfterCtrlCLeavesTheState) {
  Command command(Run(1'000'000));
  Fill(&command);
  command.Signal(SIGINT);
  ExpectStateBesideTheExport(command.Wait());
  EXPECT_FALSE(fs::exists(save_)) << "the run is not done";
}

// Earlier commits stay intact, and the message is about files, not about SQLite.
TEST_F(HostileRun, ADiskThatIsFullAtACommitSaysHowMuchIsMissing) {
  if (geteuid() != 0) GTEST_SKIP() << "mounting a file system needs root";
  const SmallDisk disk(DiskKind::kTmpfs, 32768, training_ / "disk");
  if (!disk.is_mounted()) GTEST_SKIP() << disk.why();
  const std::string store = disk.path() + "/store";
  ASSERT_EQ(RunCommand(training_.Train(1) + Arguments{"--store", store}).exit_code, 0);
  fs::remove(training_.log());
  // The next commit is the store's second, which needs room beside the first.
  Command command(training_.Train(2 * kSteps) + Arguments{"--store", store, "--resume",
                                                          "--commit-every",
                                                          std::to_string(kSteps)});
  AfterTheFirstStep(&command,
                    [&] { Shell("dd if=/dev/zero of=" + disk.path() + "/filler bs=4k"); });
  const Ended ended = command.Wait();
  EXPECT_EQ(ended.exit_code, 1) << ended.err;
  EXPECT_THAT(ended.err, AllOf(HasSubstr("No space left on device"), HasSubstr("free at least"),
                               Not(HasSubstr("SQLite"))));
}

}  // namespace
}  // namespace spillway::test
