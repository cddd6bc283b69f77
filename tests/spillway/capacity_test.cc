// SPDX-License-Identifier: Apache-2.0
//
// `spillway capacity` as its users run it: what it reports and refuses, what other commands say of
// its store, and that a signal at any moment leaves the folder as it was.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <random>
#include <string>
#include <thread>

#include "tests/seed.h"
#include "tests/spillway/command.h"
#include "tests/spillway/small_disk.h"
#include "tests/spillway/training.h"
#include "tests/temp_folder.h"

namespace spillway::test {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class Capacity : public ::testing::Test {
 protected:
  std::string store() const { return folder_ / "try/store"; }
  Arguments Try(const std::string& model, const Arguments& more = {}) const {
    return Arguments{"capacity", store(), "--model", model} + more;
  }
  // Starts a trial and kills it once it has a catalog and a segment.
  void LeaveStore() const {
    Command command(Try("7B"));
    while (!fs::exists(store() + "/spillway-segment-000000") && fs::exists("/proc/self"))
      usleep(1000);
    command.Signal(SIGKILL);
    EXPECT_EQ(command.Wait().exit_code, -SIGKILL);
  }

  TempFolder folder_;
};

TEST_F(Capacity, ReportsWhatIsRealAndWhatIsSparse) {
  const Ended ended =
      RunCommand(Try("1.1B", {"--precision", "fp16-amp", "--state-format", "compact", "--json"}));
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("takes up to"));
  const Json json = ended.json();
  EXPECT_EQ(json["v"], 1);
  EXPECT_EQ(json["verified"], true);
  EXPECT_EQ(json["parameters"], 1'100'048'384);
  const auto number = [&json](const char* key) { return json[key].get<uint64_t>(); };
  EXPECT_GT(number("state_bytes"), 2 * number("parameters"));
  EXPECT_GE(1000 * number("written_pages"), number("pages"));
  EXPECT_GE(number("verified_holes"), number("written_pages"));
  EXPECT_EQ(number("sparse_bytes"), number("state_bytes") - number("written_bytes"));
  EXPECT_GE(number("file_bytes"), number("state_bytes"));
  EXPECT_GE(json["kills"]["during_commit"], 1);
  EXPECT_LE(json["disk_bytes"]["most"], json["disk_bytes"]["expected"]);
  EXPECT_LT(json["disk_bytes"]["most"].get<uint64_t>(), number("state_bytes") / 8);
  for (const char* phase : {"lay out", "commit", "reopen", "kills", "remove", "total"})
    EXPECT_GE(json["seconds"][phase].get<double>(), 0) << phase;
  EXPECT_THAT(FilesIn(folder_.path()), IsEmpty());
}

TEST_F(Capacity, TakesSeveralFoldersAndPrintsText) {
  const Ended ended = RunCommand({"capacity", store() + "," + (folder_ / "other"), "--model",
                                  "1.1B", "--page-bytes", "256KiB", "--seed", "5"});
  ASSERT_EQ(ended.exit_code, 0) << ended.err;
  for (const char* word : {"TinyLlama 1.1B", "pages of 256 KiB", "real", "sparse", "transient",
                           "kills", "lay out", "total"})
    EXPECT_THAT(ended.out, HasSubstr(word));
  EXPECT_THAT(FilesIn(folder_.path()), IsEmpty());
}

TEST_F(Capacity, NonsenseIsAUsageErrorAndMakesNothing) {
  for (const Arguments& arguments :
       {Arguments{"capacity"}, Arguments{"capacity", store()}, Try("9B"),
        Try("7B", {"--disk", "0"}), Try("7B", {"--disk", "-1"}), Try("7B", {"--disk", "nan"}),
        Try("7B", {"--page-bytes", "5000"}), Try("7B", {"--page-bytes", "2GiB"}),
        Try("7B", {"--state-format", "none"}), Try("7B", {"--gpu", "h200"}),
        Try("7B", {"--seq", "0"}),
        Arguments{"capacity", store() + "," + store(), "--model", "7B"}}) {
    const Ended ended = RunCommand(arguments);
    EXPECT_EQ(ended.exit_code, 2) << ended.err;
    EXPECT_THAT(ended.err, HasSubstr("spillway: "));
    EXPECT_THAT(FilesIn(folder_.path()), IsEmpty());
  }
}

TEST_F(Capacity, ASmallCapNamesTheOneThatWorks) {
  const Ended small = RunCommand(Try("1.1B", {"--disk", "1MiB"}));
  ASSERT_EQ(small.exit_code, 2) << small.err;
  const std::string enough = BytesNamedIn(small.err);
  ASSERT_NE(enough, "") << small.err;
  const Ended ended = RunCommand(Try("1.1B", {"--disk", enough}));
  EXPECT_EQ(ended.exit_code, 0) << ended.err;
}

TEST_F(Capacity, AMachineThatCannotIsExitCode3) {
  const Ended limited = RunInShell("ulimit -f 100000;", Try("7B"));
  EXPECT_EQ(limited.exit_code, 3) << limited.err;
  EXPECT_THAT(limited.err, HasSubstr("ulimit -f"));
  EXPECT_THAT(FilesIn(folder_.path()), IsEmpty());
  if (geteuid() != 0) GTEST_SKIP() << "mounting a file system needs root";
  for (const DiskKind kind : {DiskKind::kTmpfs, DiskKind::kExt4}) {
    const SmallDisk disk(kind, 64 << 10, folder_ / "disk");
    if (!disk.is_mounted()) GTEST_SKIP() << disk.why();
    const auto before = FilesIn(disk.path());
    const Ended ended = RunCommand({"capacity", disk.path(), "--model", "7B"});
    EXPECT_EQ(ended.exit_code, 3) << ended.err;
    EXPECT_THAT(ended.err,
                AnyOf(HasSubstr(" free, and the trial takes"), HasSubstr("no files of")));
    EXPECT_EQ(FilesIn(disk.path()), before);
  }
}

TEST_F(Capacity, RefusesAFolderWithAStore) {
  const Training training;
  ASSERT_EQ(RunCommand(training.TrainInStore(1)).exit_code, 0);
  const auto files = FilesIn(training.store());
  const Ended ended = RunCommand({"capacity", training.store(), "--model", "1.1B"});
  EXPECT_EQ(ended.exit_code, 1) << ended.err;
  EXPECT_THAT(ended.err, HasSubstr("there is a store in"));
  EXPECT_EQ(FilesIn(training.store()), files);
}

TEST_F(Capacity, NothingElseTakesWhatAKilledTrialLeftForAStore) {
  LeaveStore();
  const auto files = FilesIn(store());
  const Training training;
  for (const Arguments& arguments :
       {Arguments{"inspect", store()}, Arguments{"fsck", store()},
        Arguments{"fsck", store(), "--repair"}, Arguments{"trim", store()},
        Arguments{"snapshot", "create", store(), "a"}, Arguments{"snapshot", "list", store()}}) {
    const Ended ended = RunCommand(arguments);
    EXPECT_EQ(ended.exit_code, 1) << ended.err;
    EXPECT_THAT(ended.err, AllOf(HasSubstr("sparse store"), HasSubstr("spillway remove")));
    EXPECT_EQ(FilesIn(store()), files);
  }
  EXPECT_EQ(RunCommand({"remove", store(), "--yes"}).exit_code, 0);
  EXPECT_THAT(FilesIn(store()), IsEmpty());

  // A run there begins anew, as where a killed run left a scratch store.
  LeaveStore();
  const Ended trained = RunCommand(training.Train(1) + Arguments{"--store", store(), "--resume"});
  EXPECT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_EQ(RunCommand({"fsck", store()}).exit_code, 0);
  EXPECT_EQ(RunCommand({"remove", store(), "--yes"}).exit_code, 0);

  LeaveStore();
  const Ended again = RunCommand(Try("1.1B"));
  EXPECT_EQ(again.exit_code, 0) << again.err;
  EXPECT_THAT(FilesIn(store()), IsEmpty());
}

TEST_F(Capacity, ASignalAtAnyMomentLeavesTheFolderAsItWas) {
  std::mt19937_64 random(Seed());
  const auto start = std::chrono::steady_clock::now();
  ASSERT_EQ(RunCommand(Try("7B")).exit_code, 0);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  for (int round = 0; round < 8; ++round) {
    const double share = std::uniform_real_distribution<double>(0, 1)(random);
    SCOPED_TRACE(share);
    Command command(Try("7B", {"--seed", std::to_string(round)}));
    while (!command.Catches(SIGINT) && !command.has_ended()) usleep(1000);
    std::this_thread::sleep_for(std::chrono::duration<double>(share * seconds));
    command.Signal(round % 2 == 0 ? SIGINT : SIGTERM);
    const Ended ended = command.Wait();
    EXPECT_THAT(ended.exit_code, AnyOf(130, 0)) << ended.err;
    EXPECT_THAT(FilesIn(folder_.path()), IsEmpty());
  }
}

TEST_F(Capacity, ASecondSignalRemovesEverythingAtOnce) {
  std::mt19937_64 random(Seed());
  for (int round = 0; round < 3; ++round) {
    Command command(Try("70B"));
    while (!fs::exists(store() + "/spillway-segment-000000") && !command.has_ended()) usleep(1000);
    usleep(static_cast<useconds_t>(random() % 2'000'000));
    command.Signal(SIGINT);
    usleep(310'000);  // less counts as the same press
    command.Signal(SIGINT);
    const Ended ended = command.Wait();
    EXPECT_EQ(ended.exit_code, 130) << ended.err;
    EXPECT_THAT(FilesIn(folder_.path()), IsEmpty());
  }
}

}  // namespace
}  // namespace spillway::test
