// SPDX-License-Identifier: Apache-2.0
//
// Tests sparse stores: their files take no room, and nobody else takes one for a store with data.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/posix_io_engine.h"
#include "io/store/folder_identity.h"
#include "io/store/store_check.h"
#include "io/store/store_view.h"
#include "tests/io/store/store_test_util.h"

namespace spillway::io {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kBigPageBytes = kMaxPageBytes;

class SparseStoreTest : public StoreTest {
 protected:
  StoreOptions Sparse() {
    StoreOptions options = Options();
    options.sparse = true;
    return options;
  }
  // Makes a sparse store with one tensor of four pages, of which the last two are holes, and closes
  // it.
  void MakeSparseStore() {
    auto store = Open(Sparse());
    ASSERT_TRUE(store);
    const TensorIndex tensor = *store->AddTensor({"w", "{}", 4}, false);
    for (uint64_t page = 0; page < 2; ++page)
      ASSERT_TRUE(WritePage(*store, io_, tensor, page, 1).ok());
    for (uint64_t page = 2; page < 4; ++page) RecordHole(*store, tensor, page);
    ASSERT_TRUE(store->Commit("one").ok());
  }
  static void RecordHole(Store& store, TensorIndex tensor, uint64_t page) {
    const auto extent = store.Allocate(kTestPageBytes);
    ASSERT_TRUE(extent.ok()) << extent.status();
    const std::vector<std::byte> zeros(kTestPageBytes);
    store.Record(tensor, page,
                 {.extent = *extent,
                  .content_bytes = static_cast<uint32_t>(kTestPageBytes),
                  .checksum = Checksum(zeros)});
  }
  absl::StatusOr<StoreCheckReport> Check() {
    auto view =
        StoreView::Open(Options().folders, StoreView::Wanted::kAlone, StoreView::Sparse::kAllowed);
    if (!view.ok()) return view.status();
    auto io = PosixIoEngine::Create({});
    return CheckStore(**view, io->get(), {});
  }
};

TEST_F(SparseStoreTest, HoldsMoreThanItsDisk) {
  StoreOptions options = Sparse();
  options.page_bytes = kBigPageBytes;
  const uint64_t disk_bytes = std::filesystem::space(folder_.path()).capacity;
  const uint64_t num_pages = disk_bytes / kBigPageBytes + 10;
  std::vector<Extent> extents;
  {
    auto store = Open(options);
    ASSERT_TRUE(store);
    EXPECT_GT(store->available_bytes(), disk_bytes);
    const TensorIndex tensor = *store->AddTensor({"w", "{}", num_pages}, false);
    for (uint64_t page = 0; page < num_pages; ++page) {
      const auto extent = store->Allocate(kBigPageBytes);
      ASSERT_TRUE(extent.ok()) << extent.status();
      extents.push_back(*extent);
      store->Record(tensor, page,
                    {.extent = *extent,
                     .content_bytes = static_cast<uint32_t>(kBigPageBytes),
                     .checksum = 7});
    }
    ASSERT_TRUE(store->Commit("").ok());
    EXPECT_GT(store->used_bytes(), disk_bytes);
  }
  uint64_t taken_bytes = 0;
  for (const std::string& name : FilesIn(options.folders[0])) {
    struct stat info{};
    ASSERT_EQ(::stat((options.folders[0] + "/" + name).c_str(), &info), 0);
    taken_bytes += static_cast<uint64_t>(info.st_blocks) * 512;
  }
  EXPECT_LT(taken_bytes, uint64_t{16} << 20);
  options.create = false;
  auto store = Open(options);
  ASSERT_TRUE(store);
  for (uint64_t page = 0; page < num_pages; ++page) {
    const auto record = store->FindPage(**store->FindTensor("w"), page);
    ASSERT_TRUE(record.ok() && record->has_value()) << record.status();
    EXPECT_EQ((*record)->extent, extents[page]);
  }
}

TEST_F(SparseStoreTest, ReopensWithItsPagesAndHoles) {
  MakeSparseStore();
  StoreOptions options = Sparse();
  options.create = false;
  auto store = Open(options);
  ASSERT_TRUE(store);
  const TensorIndex tensor = **store->FindTensor("w");
  for (uint64_t page = 0; page < 2; ++page) EXPECT_TRUE(PageIs(*store, io_, tensor, page, 1));
  store.reset();
  const auto report = Check();
  ASSERT_TRUE(report.ok()) << report.status();
  EXPECT_EQ(report->damage, 0);
  EXPECT_EQ(report->pages, 4);
  EXPECT_EQ(report->read_bytes, 4 * kTestPageBytes);
}

TEST_F(SparseStoreTest, NobodyElseOpensIt) {
  MakeSparseStore();
  const auto files = FilesIn(Options().folders[0]);
  StoreOptions existing = Options();
  existing.create = false;
  for (const absl::Status& status :
       {OpenError(existing), StoreView::Open(existing.folders, StoreView::Wanted::kAlone).status(),
        StoreView::Open(existing.folders, StoreView::Wanted::kAnyState).status()}) {
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("sparse store"));
  }
  EXPECT_EQ(FilesIn(Options().folders[0]), files);
}

TEST_F(SparseStoreTest, IsRemovedWhereAnotherStoreIsMade) {
  for (const bool sparse : {false, true}) {
    std::filesystem::remove_all(Options().folders[0]);
    MakeSparseStore();
    StoreOptions options = Options();
    options.sparse = sparse;
    options.must_not_exist = sparse;
    auto store = Open(options);
    ASSERT_TRUE(store);
    EXPECT_EQ(store->commit_number(), 0);
    EXPECT_FALSE(store->FindTensor("w")->has_value());
    EXPECT_FALSE(std::filesystem::exists(options.folders[0] + "/spillway-segment-000000"));
  }
}

TEST_F(SparseStoreTest, OpensNoOtherStore) {
  MakeStore(Options());
  StoreOptions options = Sparse();
  for (const bool create : {false, true}) {
    options.create = create;
    const absl::Status status = OpenError(options);
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("no sparse store"));
  }
  auto store = Open(Options());
  ASSERT_TRUE(store);
  EXPECT_TRUE(PageIs(*store, io_, **store->FindTensor("w"), 0, 1));
}

TEST_F(SparseStoreTest, AScratchOneRemovesItself) {
  StoreOptions options = Sparse();
  options.scratch = true;
  Open(options).reset();
  EXPECT_FALSE(std::filesystem::exists(options.folders[0]));
}

TEST_F(SparseStoreTest, ACommitThatIsStoppedHasNotTakenPlace) {
  std::atomic<bool> stop = false;
  StoreOptions options = Sparse();
  options.stop = &stop;
  auto store = Open(options);
  ASSERT_TRUE(store);
  const TensorIndex tensor = *store->AddTensor({"w", "{}", 4}, false);
  ASSERT_TRUE(WritePage(*store, io_, tensor, 0, 1).ok());
  ASSERT_TRUE(store->Commit("one").ok());
  ASSERT_TRUE(WritePage(*store, io_, tensor, 0, 2).ok());
  stop = true;
  EXPECT_TRUE(absl::IsCancelled(store->Commit("two")));
  EXPECT_EQ(store->UserState(), "one");
  stop = false;
  ASSERT_TRUE(store->Commit("three").ok());
  store.reset();
  store = Open(Sparse());
  ASSERT_TRUE(store);
  EXPECT_EQ(store->commit_number(), 2);
  EXPECT_EQ(store->UserState(), "three");
  EXPECT_TRUE(PageIs(*store, io_, **store->FindTensor("w"), 0, 2));
}

// An earlier version reads these two numbers first, and refuses all but 2.
TEST_F(SparseStoreTest, HasAnotherVersionInBothPlaces) {
  const std::string identity = Options().folders[0] + "/spillway-store";
  const std::string catalog = Options().folders[0] + "/spillway-catalog.sqlite";
  const char* const get = "SELECT value FROM meta WHERE key = 'format_version'";
  MakeSparseStore();
  EXPECT_THAT(test::ReadFile(identity), HasSubstr("\nversion 3\n"));
  EXPECT_EQ(RunSql(catalog, get), "3");
  RunSql(catalog, "UPDATE meta SET value = 2 WHERE key = 'format_version'");
  StoreOptions options = Sparse();
  EXPECT_TRUE(absl::IsDataLoss(OpenError(options)));
  EXPECT_TRUE(absl::IsDataLoss(Check().status()));
  std::filesystem::remove_all(options.folders[0]);
  MakeStore(Options());
  EXPECT_THAT(test::ReadFile(identity), HasSubstr("\nversion 2\n"));
  EXPECT_EQ(RunSql(catalog, get), "2");
  RunSql(catalog, "UPDATE meta SET value = 3 WHERE key = 'format_version'");
  EXPECT_TRUE(absl::IsDataLoss(OpenError(Options())));
}

TEST(FolderIdentity, ASparseStoreIsScratch) {
  FolderIdentity identity = {std::string(32, 'a'), 1, 2, /*scratch=*/true, /*sparse=*/true};
  const auto parsed = ParseIdentity(FormatIdentity(identity), "file");
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, identity);
  identity.scratch = false;
  EXPECT_TRUE(absl::IsDataLoss(ParseIdentity(FormatIdentity(identity), "file").status()));
}

}  // namespace
}  // namespace spillway::io
