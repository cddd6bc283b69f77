// SPDX-License-Identifier: Apache-2.0
//
// Tests the store's public contract: what reopening gives, and how much of the disk is left.
// store_opening_test.cc tests refused openings, store_crash_test.cc kills.

#include "io/store/store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mount.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "io/store/store_space.h"
#include "tests/io/store/store_test_util.h"
#include "tests/seed.h"

namespace spillway::io {
namespace {

using ::testing::HasSubstr;

TEST_F(StoreTest, ReopeningGivesTheLastCommit) {
  MakeStore(Options());
  {
    auto store = Open(Options());
    const TensorIndex tensor = **store->FindTensor("w");
    EXPECT_EQ(store->Tensor(tensor).description, "{}");
    EXPECT_EQ(store->UserState(), "one");
    for (uint64_t page = 0; page < 4; ++page) EXPECT_TRUE(PageIs(*store, io_, tensor, page, 1));
    // These changes are never committed, so they are gone after reopening.
    ASSERT_TRUE(WritePage(*store, io_, tensor, 2, 2).ok());
    EXPECT_TRUE(PageIs(*store, io_, tensor, 2, 2));
    ASSERT_TRUE(store->AddTensor({"new", "{}", 1}, false).ok());
  }
  auto store = Open(Options());
  EXPECT_TRUE(PageIs(*store, io_, **store->FindTensor("w"), 2, 1));
  EXPECT_EQ(*store->FindTensor("new"), std::nullopt);
  EXPECT_EQ(store->used_bytes(), 4 * kTestPageBytes);
}

TEST_F(StoreTest, ANewStoreHasNoCommitAndItsPagesReadAsZeros) {
  auto store = Open(Options());
  EXPECT_EQ(store->UserState(), std::nullopt);
  const TensorIndex tensor = *store->AddTensor({"w", "{}", 4}, false);
  EXPECT_EQ(*store->FindPage(tensor, 3), std::nullopt);
  EXPECT_EQ(store->used_bytes(), 0u);
  EXPECT_TRUE(store->Commit("").ok());
  EXPECT_EQ(store->UserState(), "");
}

TEST_F(StoreTest, AForgottenPageStaysForgottenAfterACommit) {
  MakeStore(Options());
  {
    auto store = Open(Options());
    const TensorIndex tensor = **store->FindTensor("w");
    store->Forget(tensor, 1);
    EXPECT_EQ(*store->FindPage(tensor, 1), std::nullopt);
    EXPECT_EQ(store->used_bytes(), 4 * kTestPageBytes) << "the last commit still names it";
    ASSERT_TRUE(store->Commit("two").ok());
    EXPECT_EQ(store->used_bytes(), 3 * kTestPageBytes);
  }
  auto store = Open(Options());
  EXPECT_EQ(*store->FindPage(**store->FindTensor("w"), 1), std::nullopt);
  EXPECT_TRUE(PageIs(*store, io_, **store->FindTensor("w"), 0, 1));
}

TEST_F(StoreTest, AddingATensorTwiceOrWithoutANameIsAnError) {
  auto store = Open(Options());
  ASSERT_TRUE(store->AddTensor({"w", "{}", 1}, false).ok());
  EXPECT_TRUE(absl::IsAlreadyExists(store->AddTensor({"w", "{}", 1}, true).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(store->AddTensor({"", "{}", 1}, false).status()));
  EXPECT_TRUE(
      absl::IsInvalidArgument(store->AddTensor({std::string(513, 'n'), "{}", 1}, false).status()));
}

TEST_F(StoreTest, TransientTensorsAreNeverInTheCatalogAndTheirExtentsAreFreeAfterwards) {
  {
    auto store = Open(Options());
    const TensorIndex lasting = *store->AddTensor({"w", "{}", 8}, false);
    const TensorIndex transient = *store->AddTensor({"gradient", "{}", 8}, true);
    for (uint64_t page = 0; page < 8; ++page) {
      ASSERT_TRUE(WritePage(*store, io_, transient, page, 1).ok());
      ASSERT_TRUE(WritePage(*store, io_, lasting, page, 1).ok());
    }
    ASSERT_TRUE(store->Commit("x").ok());
    EXPECT_TRUE(PageIs(*store, io_, transient, 3, 1)) << "a commit leaves transient pages alone";
    EXPECT_EQ(store->used_bytes(), 16 * kTestPageBytes);
    store->Forget(transient, 3);
    EXPECT_EQ(store->used_bytes(), 15 * kTestPageBytes);
  }
  const std::string catalog = folder_ / "store/spillway-catalog.sqlite";
  EXPECT_EQ(RunSql(catalog, "SELECT group_concat(name) FROM tensors"), "w");
  EXPECT_EQ(RunSql(catalog, "SELECT count(*) FROM pages"), "8");
  auto store = Open(Options());
  EXPECT_EQ(store->used_bytes(), 8 * kTestPageBytes);
  EXPECT_EQ(*store->FindTensor("gradient"), std::nullopt);
  for (uint64_t page = 0; page < 8; ++page)
    EXPECT_TRUE(PageIs(*store, io_, **store->FindTensor("w"), page, 1));
}

TEST_F(StoreTest, ACommitPutsOnlyWhatChanged) {
  MakeStore(Options());
  auto store = Open(Options());
  const std::string catalog = folder_ / "store/spillway-catalog.sqlite";
  RunSql(catalog,
         "CREATE TABLE log (page); CREATE TRIGGER t AFTER INSERT ON pages BEGIN "
         "INSERT INTO log VALUES (new.page); END");
  ASSERT_TRUE(WritePage(*store, io_, **store->FindTensor("w"), 2, 2).ok());
  ASSERT_TRUE(WritePage(*store, io_, **store->FindTensor("w"), 2, 3).ok());
  ASSERT_TRUE(store->Commit("two").ok());
  EXPECT_EQ(RunSql(catalog, "SELECT group_concat(page) FROM log"), "2");
}

TEST_F(StoreTest, ExtentsOfTheLastCommitAreNeverGivenOutBeforeTheNext) {
  std::mt19937_64 random(test::Seed());
  StoreOptions options = TwoFolders();
  options.segment_bytes = 16 * kTestPageBytes;
  auto store = Open(options);
  const TensorIndex tensor = *store->AddTensor({"w", "{}", 24}, false);
  const auto key = [](const Extent& e) { return std::tuple(e.device, e.segment, e.offset); };
  std::set<std::tuple<uint16_t, uint32_t, uint64_t>> committed;
  std::map<uint64_t, uint64_t> newest;  // version by page
  for (uint64_t version = 1; version < 1500; ++version) {
    if (random() % 40 == 0) {
      ASSERT_TRUE(store->Commit("x").ok());
      committed.clear();
      for (const auto& [page, unused] : newest)
        committed.insert(key((*store->FindPage(tensor, page))->extent));
    }
    const uint64_t page = random() % 24;
    if (random() % 10 == 0) {
      store->Forget(tensor, page);
      newest.erase(page);
      continue;
    }
    const auto extent = store->Allocate(kTestPageBytes);
    ASSERT_TRUE(extent.ok()) << extent.status();
    ASSERT_FALSE(committed.contains(key(*extent)));
    for (const auto& [other, unused] : newest) {
      ASSERT_NE(key((*store->FindPage(tensor, other))->extent), key(*extent));
    }
    if (random() % 10 == 0) {
      store->Release(*extent);
      continue;
    }
    store->Record(tensor, page, {.extent = *extent, .content_bytes = 1, .checksum = version});
    newest[page] = version;
    ASSERT_EQ((*store->FindPage(tensor, page))->checksum, version);
  }
  ASSERT_TRUE(store->Commit("end").ok());
  EXPECT_EQ(store->used_bytes(), newest.size() * kTestPageBytes);
}

TEST_F(StoreTest, FilesGrowOnlyAsFarAsTheBusiestMoment) {
  StoreOptions options = Options();
  auto store = Open(options);
  const TensorIndex tensor = *store->AddTensor({"w", "{}", 4}, false);
  for (uint64_t version = 1; version < 200; ++version) {
    for (uint64_t page = 0; page < 4; ++page) {
      const auto extent = store->Allocate(kTestPageBytes);
      ASSERT_TRUE(extent.ok());
      EXPECT_LT(extent->offset, 9 * kTestPageBytes) << "old, new and one in hand";
      store->Record(tensor, page, {.extent = *extent, .content_bytes = 1, .checksum = version});
    }
    ASSERT_TRUE(store->Commit("x").ok());
  }
}

TEST_F(StoreTest, SegmentFilesAreBoundedAndFoldersTakeTurns) {
  StoreOptions options = TwoFolders();
  options.segment_bytes = 4 * kTestPageBytes;
  auto store = Open(options);
  const TensorIndex tensor = *store->AddTensor({"w", "{}", 24}, false);
  for (uint64_t page = 0; page < 24; ++page) {
    ASSERT_TRUE(WritePage(*store, io_, tensor, page, 1).ok());
    EXPECT_EQ((*store->FindPage(tensor, page))->extent.device, page % 2);
  }
  for (const char* name : {"a", "b"}) {
    for (int segment = 0; segment < 3; ++segment) {
      EXPECT_EQ(std::filesystem::file_size(folder_ / name + "/spillway-segment-00000" +
                                           std::to_string(segment)),
                4 * kTestPageBytes);
    }
  }
  EXPECT_EQ(io_.num_files(), 6u);
  const Extent extent = (*store->FindPage(tensor, 1))->extent;
  EXPECT_EQ(store->Path(extent), folder_ / "b/spillway-segment-000000");
  store.reset();
  EXPECT_EQ(io_.num_files(), 0u) << "the engine forgets the files";
}

TEST_F(StoreTest, BudgetIsHardAndSaysWhatIsInUse) {
  StoreOptions options = Options();
  options.max_bytes = 10 * kTestPageBytes;
  auto store = Open(options);
  const TensorIndex tensor = *store->AddTensor({"w", "{}", 20}, false);
  EXPECT_EQ(store->available_bytes(), options.max_bytes);
  for (uint64_t page = 0; page < 10; ++page)
    ASSERT_TRUE(WritePage(*store, io_, tensor, page, 1).ok());
  EXPECT_EQ(store->available_bytes(), 0u);
  const absl::Status status = store->Allocate(kTestPageBytes).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("65536"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("655360"));
  EXPECT_EQ(std::filesystem::file_size(folder_ / "store/spillway-segment-000000"),
            options.max_bytes);
  store->Forget(tensor, 3);
  EXPECT_EQ(store->available_bytes(), kTestPageBytes);
  EXPECT_TRUE(WritePage(*store, io_, tensor, 3, 2).ok());
}

TEST_F(StoreTest, ACommitThatNeverBeganTakesNoRoom) {
  bool reads_fail = false;
  SetSqliteHook([&](const SqliteCall& call) {
    return reads_fail && call.op == SqliteCall::Op::kRead ? EIO : 0;
  });
  MakeStore(Options());
  StoreOptions options = Options();
  options.max_bytes = 8 * kTestPageBytes;  // room for the last commit and for the next one
  auto store = Open(options);
  const TensorIndex tensor = **store->FindTensor("w");
  for (uint64_t page = 0; page < 4; ++page)
    ASSERT_TRUE(WritePage(*store, io_, tensor, page, 2).ok());
  reads_fail = true;
  EXPECT_FALSE(store->Commit("two").ok());
  reads_fail = false;
  // A copy that the failed commit would have had is freed when its page is forgotten or rewritten.
  store->Forget(tensor, 3);
  for (uint64_t page = 0; page < 3; ++page)
    EXPECT_TRUE(WritePage(*store, io_, tensor, page, 3).ok());
  EXPECT_TRUE(WritePage(*store, io_, tensor, 3, 3).ok());
  EXPECT_TRUE(store->Commit("three").ok());
  store.reset();
  SetSqliteHook({});
}

TEST_F(StoreTest, ABudgetBelowWhatIsCommittedStillOpens) {
  MakeStore(Options());
  StoreOptions options = Options();
  options.max_bytes = kTestPageBytes;
  auto store = Open(options);
  ASSERT_TRUE(store);
  EXPECT_EQ(store->available_bytes(), 0u);
  EXPECT_TRUE(absl::IsResourceExhausted(store->Allocate(1).status()));
}

TEST_F(StoreTest, AnExtentLargerThanASegmentIsRefused) {
  StoreOptions options = Options();
  options.segment_bytes = 2 * kTestPageBytes;
  auto store = Open(options);
  EXPECT_TRUE(absl::IsInvalidArgument(store->Allocate(2 * kTestPageBytes + 1).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(store->Allocate(0).status()));
  EXPECT_TRUE(store->Allocate(2 * kTestPageBytes).ok());
}

TEST_F(StoreTest, AnEngineThatTakesNoMoreFilesLeavesNoFileBehind) {
  auto store = Open(Options());
  io_.FailNextAdd();
  const absl::Status status = store->Allocate(kTestPageBytes).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("table full"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "store/spillway-segment-000000"));
  EXPECT_TRUE(store->Allocate(kTestPageBytes).ok());
}

// A fixture on a tmpfs of 4 MiB. Skips the test where mounting is not allowed.
class FullFileSystemTest : public StoreTest {
 protected:
  void SetUp() override {
    std::filesystem::create_directory(folder_ / "small");
    if (::mount("tmpfs", (folder_ / "small").c_str(), "tmpfs", 0, "size=4m") != 0) {
      GTEST_SKIP() << "cannot mount a small tmpfs here: " << std::strerror(errno);
    }
    mounted_ = true;
  }
  void TearDown() override {
    if (mounted_) ::umount2((folder_ / "small").c_str(), MNT_DETACH);
  }
  bool mounted_ = false;
};

TEST_F(FullFileSystemTest, AFullFileSystemIsResourceExhaustedAndACommitStillFits) {
  StoreOptions options = Options();
  options.folders = {folder_ / "small/store"};
  auto store = Open(options);
  ASSERT_TRUE(store);
  const uint64_t available_bytes = store->available_bytes();
  EXPECT_LT(available_bytes, uint64_t{4} << 20);
  const TensorIndex tensor = *store->AddTensor({"w", "{}", 100}, false);
  uint64_t page = 0;
  absl::Status status;
  while ((status = WritePage(*store, io_, tensor, page, 1)).ok()) ++page;
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("ENOSPC")) << "the disk, not a budget";
  EXPECT_GE((page + 1) * kTestPageBytes, available_bytes);
  EXPECT_TRUE(store->Commit("full").ok());
  store.reset();
  store = Open(options);
  for (uint64_t i = 0; i < page; ++i)
    EXPECT_TRUE(PageIs(*store, io_, **store->FindTensor("w"), i, 1));
}

TEST_F(StoreTest, AFileGrowsByWhatTheStoreHasFrom4To64MiBThenByAQuarter) {
  auto store = Open(Options());
  std::vector<uint64_t> mebibytes;
  for (int i = 0; i < 330; ++i) {
    ASSERT_TRUE(store->Allocate(1 << 20).ok());
    const uint64_t size =
        std::filesystem::file_size(Options().folders[0] + "/spillway-segment-000000") >> 20;
    if (mebibytes.empty() || mebibytes.back() != size) mebibytes.push_back(size);
  }
  EXPECT_THAT(mebibytes, ::testing::ElementsAre(4, 8, 16, 32, 64, 128, 192, 256, 320, 400));
  EXPECT_EQ(GrowBytes(uint64_t{1} << 40), uint64_t{1} << 30);
}

TEST_F(FullFileSystemTest, AFileGrowsByAShareOfWhatASmallDiskHasFree) {
  StoreOptions options = Options();
  options.folders = {folder_ / "small/store"};
  auto store = Open(options);
  ASSERT_TRUE(store);
  const uint64_t available_bytes = store->available_bytes();
  const TensorIndex tensor = *store->AddTensor({"w", "{}", 1}, false);
  ASSERT_TRUE(WritePage(*store, io_, tensor, 0, 1).ok());
  EXPECT_LE(std::filesystem::file_size(options.folders[0] + "/spillway-segment-000000"),
            available_bytes / 4);
}

TEST_F(FullFileSystemTest, AnyNumberOfCommitsFits) {
  StoreOptions options = Options();
  options.folders = {folder_ / "small/store"};
  auto store = Open(options);
  ASSERT_TRUE(store);
  const TensorIndex tensor = *store->AddTensor({"w", "{}", 100}, false);
  uint64_t page = 0;
  while (WritePage(*store, io_, tensor, page, 1).ok()) ++page;
  ASSERT_TRUE(store->Commit("full").ok());
  for (int i = 0; i < 400; ++i) {
    const absl::Status status = store->Commit("again");
    ASSERT_TRUE(status.ok()) << i << ": " << status;
  }
  EXPECT_LE(std::filesystem::file_size(options.folders[0] + "/spillway-catalog.sqlite-wal"),
            512u << 10);
}

TEST_F(FullFileSystemTest, ATrimNeedsNoRoom) {
  StoreOptions options = Options();
  options.folders = {folder_ / "small/store"};
  auto store = Open(options);
  ASSERT_TRUE(store);
  const TensorIndex tensor = *store->AddTensor({"w", "{}", 8}, false);
  for (uint64_t page = 0; page < 8; ++page)
    ASSERT_TRUE(WritePage(*store, io_, tensor, page, 1).ok());
  ASSERT_TRUE(store->Commit("").ok());
  for (uint64_t page = 0; page < 8; page += 2) store->Forget(tensor, page);
  ASSERT_TRUE(store->Commit("").ok());
  store.reset();
  ASSERT_EQ(std::system(("dd if=/dev/zero of=" + (folder_ / "small/filler") +
                         " bs=4k >/dev/null 2>&1; true")
                            .c_str()),
            0);
  const absl::Status full = OpenError(options);
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_THAT(std::string(full.message()), HasSubstr("ENOSPC"));
  options.when_full = true;
  store = Open(options);
  ASSERT_TRUE(store);
  const auto trimmed = store->Trim();
  ASSERT_TRUE(trimmed.ok()) << trimmed.status();
  EXPECT_GE(*trimmed, 4 * kTestPageBytes);
  for (uint64_t page = 1; page < 8; page += 2)
    EXPECT_TRUE(PageIs(*store, io_, **store->FindTensor("w"), page, 1));
}

TEST_F(FullFileSystemTest, ASecondFolderWithRoomServesWhenTheFirstIsFull) {
  StoreOptions options = Options();
  options.folders = {folder_ / "small/store", folder_ / "large"};
  auto store = Open(options);
  ASSERT_TRUE(store);
  const TensorIndex tensor = *store->AddTensor({"w", "{}", 200}, false);
  for (uint64_t page = 0; page < 200; ++page) {
    const absl::Status status = WritePage(*store, io_, tensor, page, 1);
    ASSERT_TRUE(status.ok()) << status;
  }
  EXPECT_EQ((*store->FindPage(tensor, 199))->extent.device, 1);
  EXPECT_TRUE(store->Commit("x").ok());
}

TEST_F(FullFileSystemTest, ACommitThatDoesNotFitLeavesTheLastOneAndMayBeRepeated) {
  StoreOptions options = Options();
  options.folders = {folder_ / "small/store"};
  auto store = Open(options);
  ASSERT_TRUE(store);
  const TensorIndex tensor = *store->AddTensor({"w", "{}", 1}, false);
  ASSERT_TRUE(WritePage(*store, io_, tensor, 0, 1).ok());
  ASSERT_TRUE(store->Commit("one").ok());
  ASSERT_TRUE(WritePage(*store, io_, tensor, 0, 2).ok());
  {
    std::ofstream filler(folder_ / "small/filler");
    while (filler << std::string(4096, 'x') << std::flush) continue;
  }
  const absl::Status status = store->Commit(std::string(100000, 's'));
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(store->UserState(), "one");
  std::filesystem::remove(folder_ / "small/filler");
  ASSERT_TRUE(store->Commit("two").ok());
  store.reset();
  store = Open(options);
  EXPECT_EQ(store->UserState(), "two");
  EXPECT_TRUE(PageIs(*store, io_, **store->FindTensor("w"), 0, 2));
}

TEST_F(FullFileSystemTest, AStoreThatCannotBeMadeLeavesNothing) {
  {
    std::ofstream filler(folder_ / "small/filler");
    while (filler << std::string(4096, 'x') << std::flush) continue;
  }
  StoreOptions options = Options();
  options.folders = {folder_ / "small/store"};
  const absl::Status status = OpenError(options);
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_EQ(FilesIn(folder_ / "small"), std::vector<std::string>{"filler"});
}

}  // namespace
}  // namespace spillway::io
