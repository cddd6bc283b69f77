// SPDX-License-Identifier: Apache-2.0
//
// Capacity trials of small layouts: what they report, what they find if bytes or rows change under
// them, and what they leave.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "spillway/types.h"
#include "tests/io/store/store_test_util.h"
#include "tests/seed.h"
#include "tests/temp_folder.h"
#include "tools/spillway/capacity/killed_commit.h"
#include "tools/spillway/capacity/layout.h"
#include "tools/spillway/capacity/page_pattern.h"
#include "tools/spillway/capacity/page_sample.h"
#include "tools/spillway/capacity/trial.h"
#include "tools/spillway/capacity/trial_folders.h"

namespace spillway::capacity {
namespace {

namespace fs = std::filesystem;
using test::FilesIn;
using test::TempFolder;
using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kPageBytes = 16 * kKiB;

// Tensors with tiles of several pages, of one page, with a short last tile, and of packed size.
std::vector<TensorSpec> Specs() {
  std::vector<TensorSpec> specs;
  for (int layer = 0; layer < 8; ++layer) {
    const std::string prefix = "layer" + std::to_string(layer);
    specs.push_back({.name = prefix + ".w",
                     .dtype = DType::kF16,
                     .shape = {700, 1000},
                     .role = Role::kParameter,
                     .tile_rows = 32});
    specs.push_back({.name = prefix + ".w/m",
                     .dtype = DType::kF32,
                     .shape = {700, 1000},
                     .role = Role::kMoment,
                     .tile_rows = 4});
    specs.push_back({.name = prefix + ".norm", .dtype = DType::kF32, .shape = {1000}});
    specs.push_back({.name = prefix + ".w/grad",
                     .dtype = DType::kF16,
                     .shape = {700, 1000},
                     .role = Role::kGradient,
                     .tile_rows = 32,
                     .transient = true});
  }
  return specs;
}

class CapacityTrial : public ::testing::Test {
 protected:
  TrialOptions Options(int num_folders = 1) {
    TrialOptions options;
    for (int i = 0; i < num_folders; ++i)
      options.folders.push_back(folder_ / ("new" + std::to_string(i) + "/store"));
    options.specs = Specs();
    options.page_bytes = kPageBytes;
    options.segment_bytes = 2 * kMiB;
    options.disk_bytes = kGiB;
    options.seed = seed_;
    return options;
  }
  // Runs a trial in which `change` is called before a phase, and returns how it ended.
  absl::Status RunWith(std::string_view phase, const std::function<void()>& change) {
    TrialOptions options = Options();
    options.before_phase = [&](std::string_view next) {
      if (next == phase) change();
    };
    return RunTrial(options).status();
  }
  std::string Store() { return Options().folders[0]; }
  // Changes a byte of a page's extent, at a place that the catalog gives for `condition`.
  void FlipByte(const std::string& condition) {
    const std::string catalog = copies_ / "catalog.sqlite";
    for (const char* suffix : {"", "-wal"}) {
      fs::copy_file(Store() + "/spillway-catalog.sqlite" + suffix, catalog + suffix,
                    fs::copy_options::overwrite_existing);
    }
    const std::string from = " FROM pages WHERE " + condition + " LIMIT 1";
    const std::string segment = io::RunSql(catalog, "SELECT printf('%06d', segment)" + from);
    const std::string offset = io::RunSql(catalog, "SELECT offset + skip_bytes + 5" + from);
    ASSERT_NE(offset, "") << condition;
    const std::string path = Store() + "/spillway-segment-" + segment;
    const int fd = ::open(path.c_str(), O_RDWR);
    ASSERT_GE(fd, 0) << path;
    char byte = 0;
    const off_t at = std::stoll(offset);
    EXPECT_EQ(::pread(fd, &byte, 1, at), 1);
    byte ^= 0x10;
    EXPECT_EQ(::pwrite(fd, &byte, 1, at), 1);
    EXPECT_EQ(::fsync(fd), 0);
    ::close(fd);
  }

  const uint64_t seed_ = test::Seed();
  TempFolder folder_{test::FastPlace()};
  TempFolder copies_{test::FastPlace()};
};

TEST_F(CapacityTrial, HoldsEveryPageAndLeavesNothing) {
  for (const int num_folders : {1, 3}) {
    const TrialOptions options = Options(num_folders);
    const auto report = RunTrial(options);
    ASSERT_TRUE(report.ok()) << report.status();
    // 700 rows of 2,000 bytes in tiles of 32 rows: 21 tiles of 4 pages, one of 28 rows with 4
    // pages. 175 tiles of 16,000 bytes in one page each. One page.
    EXPECT_EQ(report->rows.tensors, 24);
    EXPECT_EQ(report->rows.pages, 8 * (22 * 4 + 175 + 1));
    EXPECT_EQ(report->rows.bytes, 8 * (1'400'000 + 2'800'000 + 4000));
    EXPECT_EQ(report->transient.pages, 8 * 22 * 4);
    EXPECT_GE(report->files, num_folders * 6);
    EXPECT_GE(report->written_pages * kSampleShare, report->rows.pages);
    EXPECT_GE(report->written_pages, report->files);
    EXPECT_GE(report->verified_holes, report->written_pages);
    EXPECT_GE(report->commits, 3);
    EXPECT_GE(report->kills, 1);
    EXPECT_GT(report->file_bytes, report->rows.bytes);
    EXPECT_LE(report->disk_bytes, report->needed_bytes);
    EXPECT_THAT(FilesIn(folder_.path()), IsEmpty());
  }
}

TEST_F(CapacityTrial, FindsAChangedByteOfAWrittenPage) {
  // The norms are packed, so all of them are written.
  const absl::Status changed = RunWith(
      "verify", [&] { FlipByte("tensor IN (SELECT id FROM tensors WHERE name = 'layer5.norm')"); });
  EXPECT_TRUE(absl::IsDataLoss(changed)) << changed;
  EXPECT_THAT(FilesIn(folder_.path()), IsEmpty());
  // The first page of all is among those that later phases write anew, and so read again. A restore
  // gives up the copy that was changed.
  for (const auto& [phase, code] : {std::pair("second commit", absl::StatusCode::kDataLoss),
                                    std::pair("restore", absl::StatusCode::kOk),
                                    std::pair("verify again", absl::StatusCode::kDataLoss)}) {
    const absl::Status status = RunWith(phase, [&] {
      FlipByte("page = 0 AND tensor IN (SELECT id FROM tensors WHERE name = 'layer0.w')");
    });
    EXPECT_EQ(status.code(), code) << phase << ": " << status;
    EXPECT_THAT(FilesIn(folder_.path()), IsEmpty());
  }
}

TEST_F(CapacityTrial, FindsAByteInAHole) {
  // The hole after the first page, which is the first of its file and so is written.
  const absl::Status status = RunWith("verify", [&] {
    FlipByte("page = 1 AND tensor IN (SELECT id FROM tensors WHERE name = 'layer0.w')");
  });
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(FilesIn(folder_.path()), IsEmpty());
}

TEST_F(CapacityTrial, FindsARowThatIsNotTheLayouts) {
  // The last two only the check of all rows sees.
  for (const auto& [phase, sql] :
       {std::pair("reopen", "UPDATE pages SET checksum = 1 WHERE page = 2"),
        std::pair("reopen", "DELETE FROM pages WHERE page = 3"),
        std::pair("reopen", "UPDATE tensors SET description = 'x'"),
        std::pair("reopen", "UPDATE pages SET content_bytes = 8 WHERE page = 5"),
        std::pair("check", "UPDATE last_commit SET used_bytes = used_bytes + 4096"),
        std::pair("check", "UPDATE pages SET checksum = checksum + 1 WHERE page = 6")}) {
    const absl::Status status =
        RunWith(phase, [&] { io::RunSql(Store() + "/spillway-catalog.sqlite", sql); });
    EXPECT_TRUE(absl::IsDataLoss(status)) << sql << ": " << status;
    EXPECT_THAT(FilesIn(folder_.path()), IsEmpty());
  }
}

TEST_F(CapacityTrial, StopsBetweenAnyTwoPhasesAndLeavesNothing) {
  std::vector<std::string> phases;
  TrialOptions options = Options();
  options.before_phase = [&](std::string_view phase) { phases.emplace_back(phase); };
  ASSERT_TRUE(RunTrial(options).ok());
  EXPECT_THAT(phases, Contains("kills"));
  for (const std::string& phase : phases) {
    std::atomic<bool> stop = false;
    options.stop = &stop;
    options.before_phase = [&](std::string_view next) { stop = next == phase; };
    EXPECT_TRUE(absl::IsCancelled(RunTrial(options).status())) << phase;
    EXPECT_THAT(FilesIn(folder_.path()), IsEmpty()) << phase;
  }
}

TEST_F(CapacityTrial, KeepsOtherFilesAndAFolderThatWasThere) {
  fs::create_directories(Store());
  test::WriteFile(Store() + "/notes", "mine");
  ASSERT_TRUE(RunTrial(Options()).ok());
  EXPECT_THAT(FilesIn(Store()), ElementsAre("notes"));
}

TEST_F(CapacityTrial, RefusesAFolderWithAStoreAndLeavesIt) {
  const TrialOptions options = Options();
  {
    io::NamingIoEngine io;
    auto store = io::Store::Open({.folders = options.folders}, &io);
    ASSERT_TRUE(store.ok()) << store.status();
    ASSERT_TRUE((*store)->Commit("mine").ok());
  }
  const auto files = FilesIn(Store());
  EXPECT_TRUE(absl::IsFailedPrecondition(RunTrial(options).status()));
  EXPECT_EQ(FilesIn(Store()), files);
}

TEST_F(CapacityTrial, EndsWhenItTakesMoreThanItMay) {
  TrialOptions options = Options();
  options.disk_bytes = 64 * kKiB;
  EXPECT_TRUE(absl::IsResourceExhausted(RunTrial(options).status()));
  EXPECT_THAT(FilesIn(folder_.path()), IsEmpty());
}

// --- The parts ---

TEST(CapacitySample, WritesItsShareAndVerifiesAsManyHoles) {
  std::mt19937_64 random(test::Seed());
  for (int round = 0; round < 200; ++round) {
    const uint64_t num_pages = random() % (round < 100 ? 50 : 20'000) + 1;
    const uint64_t pages_per_file = random() % 3000 + 1;
    PageSample sample(random(), num_pages);
    uint64_t counts[3] = {};
    for (uint64_t page = 0; page < num_pages; ++page) {
      const bool is_first = page % pages_per_file == 0;
      const PageUse use = sample.Next(is_first);
      if (is_first || page + 1 == num_pages) {
        EXPECT_EQ(use, PageUse::kWritten);
      }
      ++counts[static_cast<size_t>(use)];
    }
    const uint64_t written = counts[static_cast<size_t>(PageUse::kWritten)];
    const uint64_t verified = counts[static_cast<size_t>(PageUse::kVerifiedHole)];
    EXPECT_GE(written * kSampleShare, num_pages);
    EXPECT_LE(written, num_pages / kSampleShare + num_pages / pages_per_file + 3);
    // A file of one or two pages leaves no hole behind its written page.
    if (pages_per_file > 2) {
      EXPECT_GE(verified, std::min(written, num_pages - written));
    }
    EXPECT_LE(verified, written + 3);
  }
}

TEST(CapacityPattern, EachPageAndVersionHasItsOwnBytes) {
  for (const size_t size : {size_t{5}, size_t{8}, size_t{4001}}) {
    const PagePattern pattern = {.seed = 3, .tensor = 1, .page = 9, .version = 2};
    std::vector<std::byte> bytes(size);
    pattern.Fill(bytes);
    EXPECT_EQ(pattern.FirstDifference(bytes), std::nullopt);
    for (const PagePattern& other :
         {PagePattern{4, 1, 9, 2}, PagePattern{3, 2, 9, 2}, PagePattern{3, 1, 8, 2},
          PagePattern{3, 1, 9, 1}, PagePattern{3, 1, 9, 0}})
      EXPECT_EQ(other.FirstDifference(bytes), 0);
    bytes[size - 1] ^= std::byte{1};
    EXPECT_EQ(pattern.FirstDifference(bytes), (size - 1) / 8 * 8);
  }
  const PagePattern hole;
  std::vector<std::byte> zeros(4001);
  EXPECT_EQ(hole.FirstDifference(zeros), std::nullopt);
  zeros[17] = std::byte{1};
  EXPECT_EQ(hole.FirstDifference(zeros), 16);
}

TEST(CapacityFolders, SaysWhatAFileSystemLacks) {
  const DiskNeed need = {
      .folder_bytes = 10 * kMiB, .first_folder_bytes = 5 * kMiB, .largest_file_bytes = kGiB};
  const FileSystemProbe good = {.folder = "/a",
                                .device = 1,
                                .free_bytes = 25 * kMiB,
                                .sparse_file_bytes = 8 * kKiB,
                                .holds_largest = true};
  FileSystemProbe other = good;
  EXPECT_TRUE(CheckFileSystems({good, other}, need).ok());
  const auto lacks = [&](const std::vector<FileSystemProbe>& probes) {
    const absl::Status status = CheckFileSystems(probes, need);
    EXPECT_TRUE(absl::IsUnimplemented(status)) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(lacks({good, other, other}), HasSubstr("free 10.0 MiB"));  // three on one
  other.device = 2;
  EXPECT_TRUE(CheckFileSystems({good, good, other, other}, need).ok());
  other.sparse_file_bytes = kProbeBytes;
  EXPECT_THAT(lacks({good, other}), HasSubstr("no holes"));
  other.holds_largest = false;
  EXPECT_THAT(lacks({good, other}), HasSubstr("no files of 1.0 GiB"));
}

TEST(CapacityFolders, ProbesAFolderThatDoesNotExistYet) {
  const TempFolder folder;
  const auto probe = ProbeFileSystem(folder / "a/b", kGiB);
  ASSERT_TRUE(probe.ok()) << probe.status();
  EXPECT_TRUE(probe->holds_largest);
  EXPECT_LT(probe->sparse_file_bytes, kMiB);
  EXPECT_GT(probe->free_bytes, 0);
  EXPECT_THAT(FilesIn(folder.path()), IsEmpty());
  EXPECT_THAT(MissingFolders({folder / "a/b", folder / "c", folder.path()}),
              ElementsAre(folder / "a", folder / "a/b", folder / "c"));
}

TEST(CapacityFolders, RemovesAnOpenTrialsFilesAndNoOthers) {
  const TempFolder folder;
  const std::vector<std::string> folders = {folder / "a", folder / "b"};
  fs::create_directory(folders[0]);
  test::WriteFile(folders[0] + "/notes", "mine");
  const std::vector<std::string> made = MissingFolders(folders);
  io::NamingIoEngine io;
  auto sparse = io::Store::Open({.folders = folders, .sparse = true}, &io);
  ASSERT_TRUE(sparse.ok()) << sparse.status();
  ASSERT_TRUE((*sparse)->Allocate(4096).ok());
  RemoveOpenTrial(folders, made);
  EXPECT_THAT(FilesIn(folders[0]), ElementsAre("notes"));
  EXPECT_FALSE(fs::exists(folders[1]));
  sparse->reset();
  EXPECT_THAT(FilesIn(folders[0]), ElementsAre("notes"));
  {
    auto store = io::Store::Open({.folders = folders}, &io);
    ASSERT_TRUE(store.ok()) << store.status();
    ASSERT_TRUE((*store)->Commit("mine").ok());
    const auto files = FilesIn(folders[0]);
    RemoveOpenTrial(folders, made);
    EXPECT_EQ(FilesIn(folders[0]), files);
  }
  EXPECT_TRUE(RemoveTrial(folders, made).ok());
  EXPECT_TRUE(fs::exists(folders[0] + "/spillway-catalog.sqlite"));
}

TEST(CapacityKill, TellsWhetherTheKillCameFirst) {
  const auto works = [](const std::function<void()>& begins) {
    begins();
    return absl::OkStatus();
  };
  const auto hangs = [](const std::function<void()>& begins) {
    begins();
    while (true) ::pause();
    return absl::OkStatus();
  };
  EXPECT_EQ(KillDuringCommit(works, absl::InfiniteDuration(), nullptr).value(), false);
  EXPECT_EQ(KillDuringCommit(hangs, absl::Milliseconds(20), nullptr).value(), true);
}

TEST(CapacityKill, AFailureOrAStopEndsIt) {
  const auto failed = KillDuringCommit(
      [](const std::function<void()>& begins) {
        begins();
        return absl::DataLossError("bad disk");
      },
      absl::InfiniteDuration(), nullptr);
  EXPECT_THAT(std::string(failed.status().message()), HasSubstr("bad disk"));
  const auto ended =
      KillDuringCommit([](const std::function<void()>&) -> absl::Status { ::_exit(0); },
                       absl::InfiniteDuration(), nullptr);
  EXPECT_THAT(std::string(ended.status().message()), HasSubstr("ended by itself"));
  const std::atomic<bool> stop = true;
  const auto stopped = KillDuringCommit(
      [](const std::function<void()>&) -> absl::Status {
        while (true) ::pause();
      },
      absl::InfiniteDuration(), &stop);
  EXPECT_TRUE(absl::IsCancelled(stopped.status()));
}

}  // namespace
}  // namespace spillway::capacity
