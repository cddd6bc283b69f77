// SPDX-License-Identifier: Apache-2.0
//
// Holes that a trim has made, on a disk that other programs have filled since: allocating fills
// them, and leaves the room that is reserved for the catalog.

#include <unistd.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/io/store/store_test_util.h"
#include "tests/spillway/small_disk.h"

namespace spillway::io {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kMib = 1 << 20;
constexpr uint64_t kPagesPerMib = kMib / kTestPageBytes;

class HoleTest : public StoreTest, public ::testing::WithParamInterface<test::DiskKind> {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "mounting a file system needs root";
    disk_.emplace(GetParam(), 24 * 1024, folder_.path());
    if (!disk_->is_mounted()) GTEST_SKIP() << disk_->why();
    options_ = Options();
    options_.folders = {disk_->path() + "/store"};
  }
  // Leaves `bytes` of the disk free.
  void FillDisk(uint64_t bytes) {
    const uint64_t size_bytes = std::filesystem::space(disk_->path()).available - bytes;
    std::ofstream file(disk_->path() + "/other", std::ios::binary | std::ios::app);
    for (uint64_t written = 0; written < size_bytes; written += kIoAlignment)
      file << std::string(kIoAlignment, 'x');
  }
  // Makes a store with 4 MiB in pages of "kept". Of its 12 MiB of files, the other 8 are free.
  std::unique_ptr<Store> MakeStoreWithFreeRuns() {
    auto store = Open(options_);
    for (const char* const name : {"free", "kept", "free too"}) {
      const TensorIndex tensor = *store->AddTensor({name, "{}", 4 * kPagesPerMib}, false);
      for (uint64_t page = 0; page < 4 * kPagesPerMib; ++page)
        EXPECT_TRUE(WritePage(*store, io_, tensor, page, 1).ok());
    }
    EXPECT_TRUE(store->Commit("full").ok());
    store->RemoveTensor(**store->FindTensor("free"));
    store->RemoveTensor(**store->FindTensor("free too"));
    EXPECT_TRUE(store->Commit("with free runs").ok());
    return store;
  }
  // Writes pages of a new tensor until one has no room. Returns how many were written.
  uint64_t WriteUntilFull(Store& store, const std::string& name) {
    const TensorIndex tensor = *store.AddTensor({name, "{}", 24 * kPagesPerMib}, false);
    for (uint64_t page = 0; page < 24 * kPagesPerMib; ++page) {
      const absl::Status status = WritePage(store, io_, tensor, page, 2);
      if (status.ok()) continue;
      EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr("free some on its disks"));
      return page;
    }
    ADD_FAILURE() << "the disk should be full";
    return 0;
  }

  std::optional<test::SmallDisk> disk_;
  StoreOptions options_;
};

TEST_P(HoleTest, WritingIntoHolesLeavesTheReserve) {
  auto store = MakeStoreWithFreeRuns();
  ASSERT_TRUE(store);
  EXPECT_GT(*store->Trim(), 3 * kMib);
  // The reserve is at least 1 MiB, less what the catalog has already.
  FillDisk(3 * kMib);
  const uint64_t pages = WriteUntilFull(*store, "new");
  EXPECT_GE(pages, kPagesPerMib);
  EXPECT_LT(pages, 3 * kPagesPerMib);
  EXPECT_TRUE(store->Commit("into holes").ok());
  EXPECT_TRUE(PageIs(*store, io_, **store->FindTensor("new"), pages - 1, 2));

  // Bytes that a commit frees have no holes, so they need no room.
  store->RemoveTensor(**store->FindTensor("kept"));
  EXPECT_TRUE(store->Commit("without kept").ok());
  EXPECT_GE(WriteUntilFull(*store, "newer"), 4 * kPagesPerMib);
  const absl::Status committed = store->Commit("full again");
  EXPECT_TRUE(committed.ok()) << committed;

  std::filesystem::remove(disk_->path() + "/other");
  const TensorIndex rest = *store->AddTensor({"rest", "{}", 1}, false);
  EXPECT_TRUE(WritePage(*store, io_, rest, 0, 3).ok());
}

// What is free without holes is used on a full disk.
TEST_P(HoleTest, FreeRunsWithoutHolesNeedNoRoom) {
  auto store = MakeStoreWithFreeRuns();
  ASSERT_TRUE(store);
  FillDisk(0);
  EXPECT_GE(WriteUntilFull(*store, "new"), 8 * kPagesPerMib);
}

TEST_P(HoleTest, ACatalogWithoutRoomSaysWhatGivesSome) {
  auto store = MakeStoreWithFreeRuns();
  ASSERT_TRUE(store);
  ASSERT_TRUE(store->Snapshot("a").ok());
  store->RemoveTensor(**store->FindTensor("kept"));
  ASSERT_TRUE(store->Commit("without kept").ok());
  ASSERT_TRUE(store->Snapshot("b").ok());
  store.reset();
  FillDisk(0);
  options_.when_full = true;
  store = Open(options_);
  ASSERT_TRUE(store);
  const absl::Status dropped = store->Drop("a");
  EXPECT_TRUE(absl::IsResourceExhausted(dropped)) << dropped;
  EXPECT_THAT(std::string(dropped.message()), HasSubstr("('spillway trim')"));
  EXPECT_TRUE(store->Trim().ok());
  EXPECT_TRUE(store->Drop("a").ok());
}

INSTANTIATE_TEST_SUITE_P(Disks, HoleTest,
                         ::testing::Values(test::DiskKind::kTmpfs, test::DiskKind::kExt4),
                         [](const auto& each) {
                           return each.param == test::DiskKind::kTmpfs ? "Tmpfs" : "Ext4";
                         });

}  // namespace
}  // namespace spillway::io
