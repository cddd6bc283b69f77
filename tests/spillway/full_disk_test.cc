// SPDX-License-Identifier: Apache-2.0
//
// Real file systems that may be too small. A run on one either succeeds or reports once what is
// missing, and leaves the last commit intact. The check before the run must not pass if the first
// commit then fails for lack of a few KiB.

#include <sys/resource.h>
#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <tuple>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/exhaustive.h"
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

class FullDisk : public ::testing::TestWithParam<std::tuple<DiskKind, uint64_t>> {
 protected:
  void SetUp() override {
    if (geteuid() != 0) GTEST_SKIP() << "mounting a file system needs root";
    const auto [kind, kib] = GetParam();
    disk_.emplace(kind, kib, training_ / "disk");
    if (!disk_->is_mounted()) GTEST_SKIP() << disk_->why();
    store_ = disk_->path() + "/store";
  }
  // Runs on the empty disk, on which 2 MiB must do: a refusal there is a wrong estimate.
  Ended RunFirst(const Arguments& arguments) {
    Ended ended = RunCommand(arguments);
    ExpectDoneOrOneClearError(ended);
    if (std::get<uint64_t>(GetParam()) >= 2048) {
      EXPECT_EQ(ended.exit_code, 0) << ended.err;
    }
    return ended;
  }
  // Expects one of the allowed outcomes: success, or a single error that says what is missing.
  void ExpectDoneOrOneClearError(const Ended& ended) {
    if (ended.exit_code == 0) return;
    EXPECT_EQ(ended.exit_code, 1) << ended.err;
    const size_t first = ended.err.find("spillway: ");
    ASSERT_NE(first, std::string::npos) << ended.err;
    EXPECT_EQ(ended.err.find("spillway: ", first + 1), std::string::npos) << ended.err;
    const bool says_what_is_missing = ended.err.find("free some space") != std::string::npos ||
                                      ended.err.find("free at least") != std::string::npos ||
                                      ended.err.find("No space left") != std::string::npos;
    EXPECT_TRUE(says_what_is_missing) << ended.err;
  }

  const Training training_;
  std::optional<SmallDisk> disk_;
  std::string store_;
};

TEST_P(FullDisk, ARunEndsWellOrSaysWhatIsMissing) {
  const Arguments arguments = training_.Train(6) + Arguments{"--store", store_};

  const Ended ended = RunFirst(arguments + Arguments{"--commit-every", "2"});
  if (ended.exit_code != 0) {
    // A run that is refused leaves no uncommitted store, so another run can use the folder. No step
    // was wasted.
    EXPECT_THAT(ended.err, Not(HasSubstr("step 1/"))) << "refused before the run: " << ended.err;
    EXPECT_FALSE(fs::exists(store_)) << ended.err;
    return;
  }
  const Ended checked = RunCommand({"fsck", store_, "--json"});
  EXPECT_EQ(checked.exit_code, 0) << checked.out << checked.err;
  const Ended resumed = RunCommand(arguments + Arguments{"--resume"});
  EXPECT_EQ(resumed.exit_code, 0) << resumed.err;
  EXPECT_EQ(resumed.json()["steps_this_run"], 0);
  EXPECT_EQ(resumed.json()["weights_hash"], ended.json()["weights_hash"]);
}

// A run that passes the check before it has room for any number of commits: neither the segment
// files nor the catalog's log may grow with that number.
TEST_P(FullDisk, ARunThatBeginsEnds) {
  const Ended ended =
      RunFirst(training_.Train(150) + Arguments{"--store", store_, "--commit-every", "1"});
  if (ended.exit_code == 0) return;
  EXPECT_THAT(ended.err, Not(HasSubstr("step 1/"))) << "refused before the run: " << ended.err;
}

TEST_P(FullDisk, WhatNeedsNoRoomWorksAndTrimMakesSome) {
  const Arguments arguments = training_.Train(4) + Arguments{"--store", store_};
  if (RunFirst(arguments + Arguments{"--commit-every", "1"}).exit_code != 0) {
    GTEST_SKIP() << "too small for a store";
  }
  Shell("dd if=/dev/zero of=" + disk_->path() + "/filler bs=4k");
  for (const Arguments& reading :
       {Arguments{"fsck", store_}, Arguments{"fsck", store_, "--catalog-only"},
        Arguments{"inspect", store_}}) {
    const Ended ended = RunCommand(reading);
    EXPECT_EQ(ended.exit_code, 0) << reading[0] << ended.err;
  }
  const Ended resumed = RunCommand(training_.Train(8) + Arguments{"--store", store_, "--resume"});
  ExpectDoneOrOneClearError(resumed);
  if (resumed.exit_code != 0) {
    EXPECT_THAT(resumed.err, AnyOf(HasSubstr("free at least"), HasSubstr("free some space")));
  }
  const uint64_t free_before = fs::space(disk_->path()).free;
  const Ended trimmed = RunCommand({"trim", store_});
  EXPECT_EQ(trimmed.exit_code, 0) << trimmed.err;
  EXPECT_GT(fs::space(disk_->path()).free, free_before);
  EXPECT_EQ(RunCommand({"fsck", store_}).exit_code, 0);
}

// Another program fills the disk between the first commit and the resumed run.
TEST_P(FullDisk, FilledByOthersTheLastCommitStands) {
  const Arguments arguments = training_.Train(4) + Arguments{"--store", store_};
  const Ended first = RunFirst(arguments);
  if (first.exit_code != 0) return;

  const std::string filler = disk_->path() + "/filler";
  Shell("dd if=/dev/zero of=" + filler + " bs=4k");
  const Ended full = RunCommand(training_.Train(8) +
                                Arguments{"--store", store_, "--resume", "--commit-every", "1"});
  ExpectDoneOrOneClearError(full);
  fs::remove(filler);
  const Ended checked = RunCommand({"fsck", store_, "--json"});
  EXPECT_EQ(checked.exit_code, 0) << checked.out << checked.err;
  const Ended resumed = RunCommand(arguments + Arguments{"--resume"});
  // A resume needs room for two states, which the disk may never have had.
  ExpectDoneOrOneClearError(resumed);
  if (full.exit_code != 0 && resumed.exit_code == 0) {
    EXPECT_EQ(resumed.json()["weights_hash"], first.json()["weights_hash"]);
  }
}

// The store and the export fit on the larger disks, and only each alone on some of the smaller
// ones.
TEST(FullDiskForTwo, ARunThatBeginsHasRoomForItsExport) {
  if (geteuid() != 0) GTEST_SKIP() << "mounting a file system needs root";
  const Training training;
  nlohmann::json config = TinyConfig();
  config["intermediate_size"] = 4096;  // weights of 3 MiB
  WriteTinyModel(training.model(), config);
  int refused = 0;
  for (uint64_t mib = 8; mib <= 24; ++mib) {
    const SmallDisk disk(DiskKind::kTmpfs, mib * 1024, training / "disk");
    if (!disk.is_mounted()) GTEST_SKIP() << disk.why();
    const Ended ended =
        RunCommand(training.Train(1) + Arguments{"--store", disk.path() + "/store", "--save",
                                                 disk.path() + "/tuned", "--durability", "none"});
    if (ended.exit_code == 0) continue;
    EXPECT_EQ(ended.exit_code, 1) << ended.err;
    EXPECT_THAT(ended.err, Not(HasSubstr("step 1/"))) << "refused before the run: " << ended.err;
    EXPECT_TRUE(fs::is_empty(disk.path())) << ended.err;
    if (ended.err.find("are on one file system") != std::string::npos) ++refused;
  }
  EXPECT_GE(refused, 2);
}

// A limit on file sizes acts as a disk that fills up. Only updates write more than it here: the
// moments have 137 KiB. The error of a write may reach the run after the update.
TEST(FullDiskInAnUpdate, WithoutACommitNoneIsSaidToStand) {
  const Training training;
  Command command(training.TrainInStore(100000) + Arguments{"--place", "moments=nvme"});
  while (!command.has_ended() && ReadLog(training.log()).size() < 2) usleep(1000);
  const rlimit small = {.rlim_cur = 64 << 10, .rlim_max = 64 << 10};
  ASSERT_EQ(prlimit(command.pid(), RLIMIT_FSIZE, &small, nullptr), 0);
  const Ended ended = command.Wait();
  EXPECT_EQ(ended.exit_code, 1) << ended.err;
  EXPECT_THAT(ended.err, AllOf(HasSubstr("File too large"), Not(HasSubstr("stands"))));
  EXPECT_THAT(ended.err, AnyOf(HasSubstr("nothing had been committed, so the steps before"),
                               HasSubstr("the steps before it could not be committed either")));
  EXPECT_FALSE(fs::exists(training.store())) << ended.err;
}

std::string NameOf(const ::testing::TestParamInfo<std::tuple<DiskKind, uint64_t>>& info) {
  const auto& [kind, kib] = info.param;
  return (kind == DiskKind::kTmpfs ? "Tmpfs" : "Ext4") + std::to_string(kib) + "KiB";
}

INSTANTIATE_TEST_SUITE_P(
    Tmpfs, FullDisk,
    ::testing::Combine(::testing::Values(DiskKind::kTmpfs),
                       ::testing::ValuesIn(GridOf<uint64_t>({64, 128, 256, 512, 768, 1024, 1280,
                                                             1536, 2048, 2560, 3072, 4096}))),
    NameOf);
INSTANTIATE_TEST_SUITE_P(Ext4, FullDisk,
                         ::testing::Combine(::testing::Values(DiskKind::kExt4),
                                            ::testing::ValuesIn(GridOf<uint64_t>(
                                                {512, 1024, 2048, 3072, 4096, 6144, 8192}))),
                         NameOf);

}  // namespace
}  // namespace spillway::test
