// SPDX-License-Identifier: Apache-2.0
//
// Tests snapshots, packs, the order of folders and the space given back to the file system, each
// alone. store_model_test.cc tests all of them together.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/io/store/catalog_invariants.h"
#include "tests/io/store/store_test_util.h"

namespace spillway::io {
namespace {

using ::testing::HasSubstr;

class StoreSnapshotTest : public StoreTest {
 protected:
  std::string Catalog() const { return folder_ / "store/spillway-catalog.sqlite"; }
  std::vector<std::string> Labels(Store& store) {
    std::vector<std::string> labels;
    const auto snapshots = store.Snapshots();
    for (const SnapshotRecord& snapshot : *snapshots) labels.push_back(snapshot.label);
    return labels;
  }
  uint64_t StoredBytes(const std::string& path) {
    struct stat info;
    return ::stat(path.c_str(), &info) == 0 ? static_cast<uint64_t>(info.st_blocks) * 512 : 0;
  }
};

// SQLite makes temporary files, which have no name, in /var/tmp; a service often cannot write
// there.
TEST_F(StoreSnapshotTest, RestoringManyPagesMakesNoTemporaryFile) {
  int nameless_writes = 0;
  SetSqliteHook([&](const SqliteCall& call) {
    if (call.path.empty() && call.op == SqliteCall::Op::kWrite) ++nameless_writes;
    return 0;
  });
  {
    StoreOptions options = Options();
    options.page_bytes = kIoAlignment;
    auto store = Open(options);
    ASSERT_TRUE(store);
    constexpr uint64_t kPages = 4000;
    const TensorIndex tensor = *store->AddTensor({"w", "{}", kPages}, false);
    for (const std::string state : {"one", "two"}) {
      for (uint64_t page = 0; page < kPages; ++page) {
        const auto extent = store->Allocate(kIoAlignment);
        ASSERT_TRUE(extent.ok()) << extent.status();
        store->Record(tensor, page, {.extent = *extent, .content_bytes = kIoAlignment});
      }
      ASSERT_TRUE(store->Commit(state).ok());
      if (state == "one") {
        ASSERT_TRUE(store->Snapshot("first").ok());
      }
    }
    const absl::Status restored = store->Restore("first");
    EXPECT_TRUE(restored.ok()) << restored;
  }
  SetSqliteHook({});
  EXPECT_EQ(nameless_writes, 0);
}

TEST_F(StoreSnapshotTest, RestoringGivesTheBytesAndTheStateOfThen) {
  MakeStore(Options());  // four pages of version 1, "one"
  auto store = Open(Options());
  const TensorIndex tensor = **store->FindTensor("w");
  ASSERT_TRUE(store->Snapshot("first").ok());
  ASSERT_TRUE(WritePage(*store, io_, tensor, 1, 2).ok());
  store->Forget(tensor, 2);
  ASSERT_TRUE(store->Commit("two").ok());
  ASSERT_TRUE(WritePage(*store, io_, tensor, 3, 3).ok());  // never committed
  EXPECT_EQ(store->used_bytes(), 6 * kTestPageBytes);
  ASSERT_TRUE(store->Restore("first").ok());
  EXPECT_EQ(store->UserState(), "one");
  for (uint64_t page = 0; page < 4; ++page) EXPECT_TRUE(PageIs(*store, io_, tensor, page, 1));
  EXPECT_EQ(store->used_bytes(), 4 * kTestPageBytes);
  store.reset();
  store = Open(Options());
  EXPECT_EQ(store->UserState(), "one");
  for (uint64_t page = 0; page < 4; ++page)
    EXPECT_TRUE(PageIs(*store, io_, **store->FindTensor("w"), page, 1));
  EXPECT_EQ(RunSql(Catalog(), "SELECT number FROM last_commit"), "3");
  store.reset();
  ExpectInvariantsHold(Catalog());
}

TEST_F(StoreSnapshotTest, ASnapshotWritesAFewPagesOfTheCatalogWhateverTheStoreHolds) {
  StoreOptions options = Options();
  options.page_bytes = kIoAlignment;
  auto store = Open(options);
  const TensorIndex tensor = *store->AddTensor({"w", "{}", 20000}, false);
  for (uint64_t page = 0; page < 20000; ++page) {
    store->Record(tensor, page,
                  {.extent = *store->Allocate(kIoAlignment), .content_bytes = 1, .checksum = page});
  }
  ASSERT_TRUE(store->Commit("state").ok());
  RunSql(Catalog(), "PRAGMA wal_checkpoint(TRUNCATE)");
  const std::string log = Catalog() + "-wal";
  ASSERT_EQ(std::filesystem::file_size(log), 0u);
  ASSERT_TRUE(store->Snapshot("a").ok());
  EXPECT_LT(std::filesystem::file_size(log), 10 * 4096u);
  EXPECT_GT(std::filesystem::file_size(Catalog()), 100 * 4096u);
  EXPECT_EQ(RunSql(Catalog(), "SELECT count(*) FROM kept"), "0");
}

TEST_F(StoreSnapshotTest, NamesTheLastCommitAndRefusesWhatCannotBe) {
  auto store = Open(Options());
  EXPECT_TRUE(absl::IsFailedPrecondition(store->Snapshot("a")));
  EXPECT_TRUE(absl::IsFailedPrecondition(store->Restore("a")));
  EXPECT_TRUE(absl::IsFailedPrecondition(store->Drop("a")));
  const TensorIndex tensor = *store->AddTensor({"w", "{}", 4}, false);
  ASSERT_TRUE(WritePage(*store, io_, tensor, 0, 1).ok());
  ASSERT_TRUE(store->Commit("one").ok());
  for (const std::string label : {"", "a b", "a/b", "é", "a\n"}) {
    const absl::Status status = store->Snapshot(label);
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << label;
    EXPECT_EQ(status.message().find('\n'), absl::string_view::npos) << status;
  }
  EXPECT_TRUE(absl::IsInvalidArgument(store->Snapshot(std::string(129, 'a'))));
  EXPECT_TRUE(store->Snapshot(std::string(128, 'a')).ok());
  EXPECT_TRUE(store->Snapshot("step-10.best_1").ok());
  EXPECT_TRUE(absl::IsAlreadyExists(store->Snapshot("step-10.best_1")));
  EXPECT_TRUE(absl::IsNotFound(store->Restore("absent")));
  EXPECT_TRUE(absl::IsNotFound(store->Drop("absent")));
  ASSERT_TRUE(store->Commit("two").ok());
  ASSERT_TRUE(store->Snapshot("later").ok());
  const auto snapshots = store->Snapshots();
  ASSERT_EQ(snapshots->size(), 3u);
  EXPECT_EQ((*snapshots)[1].label, "step-10.best_1");
  EXPECT_EQ((*snapshots)[1].number, 1u);
  EXPECT_EQ((*snapshots)[1].user_state, "one");
  EXPECT_EQ((*snapshots)[2].number, 2u);
  EXPECT_EQ((*snapshots)[2].time.size(), std::string("2026-01-01T00:00:00+00:00").size());
}

TEST_F(StoreSnapshotTest, DroppingFreesWhatNothingElseNeeds) {
  MakeStore(Options());
  auto store = Open(Options());
  const TensorIndex tensor = **store->FindTensor("w");
  ASSERT_TRUE(store->Snapshot("a").ok());
  ASSERT_TRUE(store->Snapshot("same").ok());
  for (uint64_t version = 2; version <= 3; ++version) {
    ASSERT_TRUE(WritePage(*store, io_, tensor, 0, version).ok());
    ASSERT_TRUE(store->Commit(absl::StrCat(version)).ok());
    ASSERT_TRUE(store->Snapshot(absl::StrCat("v", version)).ok());
  }
  EXPECT_EQ(store->used_bytes(), 6 * kTestPageBytes);
  ASSERT_TRUE(store->Drop("a").ok());
  EXPECT_EQ(store->used_bytes(), 6 * kTestPageBytes) << "another label has the same commit";
  ASSERT_TRUE(store->Drop("v2").ok());
  EXPECT_EQ(store->used_bytes(), 5 * kTestPageBytes);
  ASSERT_TRUE(store->Drop("v3").ok());
  EXPECT_EQ(store->used_bytes(), 5 * kTestPageBytes) << "the last commit has it";
  ASSERT_TRUE(store->Restore("same").ok());
  EXPECT_TRUE(PageIs(*store, io_, tensor, 0, 1));
  EXPECT_EQ(store->used_bytes(), 4 * kTestPageBytes);
  ASSERT_TRUE(store->Drop("same").ok());
  EXPECT_EQ(store->used_bytes(), 4 * kTestPageBytes) << "restored pages share their extents";
  EXPECT_EQ(RunSql(Catalog(), "SELECT count(*) FROM kept"), "0");
  EXPECT_TRUE(PageIs(*store, io_, tensor, 0, 1));
  store.reset();
  ExpectInvariantsHold(Catalog());
}

TEST_F(StoreSnapshotTest, ATensorThatWasRemovedIsKeptAsLongAsASnapshotHasIt) {
  MakeStore(Options());  // four pages of version 1
  auto store = Open(Options());
  ASSERT_TRUE(store->Snapshot("a").ok());
  store->RemoveTensor(**store->FindTensor("w"));
  EXPECT_FALSE(store->FindTensor("w")->has_value());
  const TensorIndex other = *store->AddTensor({"w", "another", 2}, false);
  ASSERT_TRUE(WritePage(*store, io_, other, 0, 2).ok());
  ASSERT_TRUE(store->Commit("two").ok());
  EXPECT_EQ(store->used_bytes(), 5 * kTestPageBytes);
  store.reset();
  ExpectInvariantsHold(Catalog());
  store = Open(Options());
  EXPECT_EQ(store->Tensor(**store->FindTensor("w")).description, "another");
  EXPECT_TRUE(absl::IsFailedPrecondition(store->Restore("a"))) << "the name is another tensor's";
  store->RemoveTensor(**store->FindTensor("w"));
  ASSERT_TRUE(store->Restore("a").ok());
  const TensorIndex before = **store->FindTensor("w");
  for (uint64_t page = 0; page < 4; ++page) EXPECT_TRUE(PageIs(*store, io_, before, page, 1));
  EXPECT_EQ(store->used_bytes(), 4 * kTestPageBytes);
  store->RemoveTensor(before);
  ASSERT_TRUE(store->Commit("none").ok());
  ASSERT_TRUE(store->Drop("a").ok());
  EXPECT_EQ(store->used_bytes(), 0u);
  EXPECT_EQ(RunSql(Catalog(), "SELECT count(*) FROM tensors"), "0");
  store.reset();
  ExpectInvariantsHold(Catalog());
}

TEST_F(StoreSnapshotTest, TensorsThatTheSnapshotLacksReadAsZerosAndAreAddedAnew) {
  MakeStore(Options());
  auto store = Open(Options());
  ASSERT_TRUE(store->Snapshot("a").ok());
  const TensorIndex later = *store->AddTensor({"later", "{}", 4}, false);
  const TensorIndex transient = *store->AddTensor({"gradient", "{}", 4}, true);
  ASSERT_TRUE(WritePage(*store, io_, later, 0, 1).ok());
  ASSERT_TRUE(WritePage(*store, io_, transient, 0, 5).ok());
  ASSERT_TRUE(store->Commit("two").ok());
  ASSERT_TRUE(store->Restore("a").ok());
  EXPECT_EQ(*store->FindPage(later, 0), std::nullopt);
  EXPECT_TRUE(PageIs(*store, io_, transient, 0, 5));
  EXPECT_EQ(RunSql(Catalog(), "SELECT count(*) FROM tensors"), "1");
  ASSERT_TRUE(WritePage(*store, io_, later, 1, 2).ok());
  ASSERT_TRUE(store->Commit("three").ok());
  store.reset();
  store = Open(Options());
  const auto found = *store->FindTensor("later");
  ASSERT_TRUE(found);
  EXPECT_EQ(*store->FindPage(*found, 0), std::nullopt);
  EXPECT_TRUE((*store->FindPage(*found, 1)).has_value());
  store.reset();
  ExpectInvariantsHold(Catalog());
}

TEST_F(StoreSnapshotTest, ATensorOfAnotherShapeRefusesTheRestore) {
  MakeStore(Options());
  {
    auto store = Open(Options());
    (void)*store->AddTensor({"bias", "of two", 2}, false);
    ASSERT_TRUE(store->Commit("with bias").ok());
    ASSERT_TRUE(store->Snapshot("with-bias").ok());
  }
  RunSql(Catalog(), "UPDATE tensors SET description = 'of three' WHERE name = 'bias'");
  auto store = Open(Options());
  (void)*store->FindTensor("bias");
  ASSERT_TRUE(WritePage(*store, io_, **store->FindTensor("w"), 0, 2).ok());
  RunSql(Catalog(), "UPDATE tensors SET description = 'of two' WHERE name = 'bias'");
  const absl::Status status = store->Restore("with-bias");
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("bias"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("of three"));
  EXPECT_TRUE(PageIs(*store, io_, **store->FindTensor("w"), 0, 2)) << "nothing was dropped";
  EXPECT_EQ(RunSql(Catalog(), "SELECT number FROM last_commit"), "2");
}

TEST_F(StoreSnapshotTest, APackLivesAsLongAsOneOfItsPages) {
  auto store = Open(Options());
  const TensorIndex tensor = *store->AddTensor({"norms", "{}", 8}, false);
  const auto pack = [&](const Extent& extent, uint32_t skip_bytes) {
    return PageRecord{.extent = extent,
                      .content_bytes = 100,
                      .checksum = skip_bytes,
                      .skip_bytes = skip_bytes,
                      .packed = true};
  };
  const Extent first = *store->Allocate(kIoAlignment);
  for (uint32_t page = 0; page < 4; ++page) store->Record(tensor, page, pack(first, page * 128));
  EXPECT_EQ(store->used_bytes(), kIoAlignment);
  store->Forget(tensor, 0);
  store->Forget(tensor, 1);
  ASSERT_TRUE(store->Commit("one").ok());
  EXPECT_EQ(store->used_bytes(), kIoAlignment);
  EXPECT_EQ(RunSql(Catalog(), "SELECT num_references FROM packs"), "2");
  store.reset();
  store = Open(Options());
  const TensorIndex again = **store->FindTensor("norms");
  EXPECT_EQ(**store->FindPage(again, 2), pack(first, 256));
  ASSERT_TRUE(store->Snapshot("a").ok());
  const Extent second = *store->Allocate(kIoAlignment);
  EXPECT_FALSE(second == first);
  store->Record(again, 2, pack(second, 0));
  store->Record(again, 3, pack(second, 128));
  store->Record(again, 3, pack(second, 256));
  ASSERT_TRUE(store->Commit("two").ok());
  EXPECT_EQ(store->used_bytes(), 2 * kIoAlignment);
  ASSERT_TRUE(store->Drop("a").ok());
  EXPECT_EQ(store->used_bytes(), kIoAlignment);
  EXPECT_EQ(*store->Allocate(kIoAlignment), first);
  EXPECT_EQ(RunSql(Catalog(), "SELECT count(*) FROM packs"), "1");
  store.reset();
  ExpectInvariantsHold(Catalog());
}

TEST_F(StoreSnapshotTest, FoldersTakePagesInProportionToTheirBandwidths) {
  auto store = Open(TwoFolders());
  EXPECT_EQ(store->num_devices(), 2);
  EXPECT_EQ(store->Profile(0), std::nullopt);
  const DeviceProfile fast = {1 << 20, 8, 8, 4, 6e9, 3e9};
  const DeviceProfile slow = {1 << 20, 8, 8, 4, 2e9, 1e9};
  ASSERT_TRUE(store->SetProfile(0, slow).ok());
  const auto count = [&](int pages) {
    std::vector<int> of_device(2);
    for (int i = 0; i < pages; ++i) ++of_device[store->Allocate(kTestPageBytes)->device];
    return of_device;
  };
  EXPECT_EQ(count(40), (std::vector<int>{20, 20})) << "one has no profile";
  ASSERT_TRUE(store->SetProfile(1, fast).ok());
  EXPECT_EQ(count(40), (std::vector<int>{10, 30}));
  store.reset();
  store = Open(TwoFolders());
  EXPECT_EQ(store->Profile(1), fast);
  EXPECT_EQ(count(80), (std::vector<int>{20, 60}));
}

TEST_F(StoreSnapshotTest, TrimmingGivesBackEndsAndHolesAndEmptyFiles) {
  StoreOptions options = Options();
  options.segment_bytes = 16 * kTestPageBytes;
  auto store = Open(options);
  const TensorIndex tensor = *store->AddTensor({"w", "{}", 60}, false);
  for (uint64_t page = 0; page < 60; ++page)
    ASSERT_TRUE(WritePage(*store, io_, tensor, page, 1).ok());
  ASSERT_TRUE(store->Commit("full").ok());
  const auto segment = [&](int number) {
    return folder_ / absl::StrCat("store/spillway-segment-00000", number);
  };
  ASSERT_TRUE(std::filesystem::exists(segment(3)));
  for (uint64_t page = 0; page < 60; ++page)
    if (page != 2 && page != 7 && page != 20) store->Forget(tensor, page);
  ASSERT_TRUE(store->Commit("three pages").ok());
  const auto bytes = store->Trim();
  ASSERT_TRUE(bytes.ok()) << bytes.status();
  EXPECT_GE(*bytes, 56 * kTestPageBytes);
  EXPECT_EQ(std::filesystem::file_size(segment(0)), 8 * kTestPageBytes);
  EXPECT_EQ(StoredBytes(segment(0)), 2 * kTestPageBytes);
  EXPECT_EQ(StoredBytes(segment(1)), kTestPageBytes);
  EXPECT_FALSE(std::filesystem::exists(segment(2)));
  EXPECT_FALSE(std::filesystem::exists(segment(3)));
  EXPECT_EQ(*store->Trim(), 0u);
  ExpectInvariantsHold(Catalog());
  for (uint64_t page : {2, 7, 20}) EXPECT_TRUE(PageIs(*store, io_, tensor, page, 1));
  for (uint64_t page = 0; page < 60; ++page)
    ASSERT_TRUE(WritePage(*store, io_, tensor, page, 2).ok());
  ASSERT_TRUE(store->Commit("full again").ok());
  store.reset();
  store = Open(options);
  const TensorIndex again = **store->FindTensor("w");
  for (uint64_t page = 0; page < 60; ++page) EXPECT_TRUE(PageIs(*store, io_, again, page, 2));
  store.reset();
  ExpectInvariantsHold(Catalog());
}

TEST_F(StoreSnapshotTest, AStoreThatNeverCommittedTrimsToNothing) {
  auto store = Open(Options());
  const TensorIndex tensor = *store->AddTensor({"w", "{}", 4}, false);
  ASSERT_TRUE(WritePage(*store, io_, tensor, 0, 1).ok());
  ASSERT_TRUE(store->Trim().ok());
  EXPECT_TRUE(PageIs(*store, io_, tensor, 0, 1));
  store->Forget(tensor, 0);
  ASSERT_TRUE(store->Trim().ok());
  EXPECT_FALSE(std::filesystem::exists(folder_ / "store/spillway-segment-000000"));
  ASSERT_TRUE(WritePage(*store, io_, tensor, 0, 2).ok());
  ASSERT_TRUE(store->Commit("one").ok());
  store.reset();
  ExpectInvariantsHold(Catalog());
}

TEST_F(StoreSnapshotTest, WhatACrashLeavesInTheFilesIsUsedBeforeTheyGrow) {
  MakeStore(Options());
  const std::string segment = folder_ / "store/spillway-segment-000000";
  const uint64_t before = std::filesystem::file_size(segment);
  std::filesystem::resize_file(segment, before + 10 * kTestPageBytes + 100);
  std::ofstream(folder_ / "store/spillway-segment-000003") << std::string(3 * kTestPageBytes, 'x');
  auto store = Open(Options());
  const uint64_t free_pages = (before - 4 * kTestPageBytes) / kTestPageBytes + 13;
  const TensorIndex tensor = *store->AddTensor({"v", "{}", free_pages}, false);
  for (uint64_t page = 0; page < free_pages; ++page)
    ASSERT_TRUE(WritePage(*store, io_, tensor, page, 1).ok());
  ASSERT_TRUE(store->Commit("two").ok());
  EXPECT_EQ(std::filesystem::file_size(segment), before + 10 * kTestPageBytes + 100);
  EXPECT_EQ(std::filesystem::file_size(folder_ / "store/spillway-segment-000003"),
            3 * kTestPageBytes);
  store.reset();
  ExpectInvariantsHold(Catalog());
}

TEST_F(StoreSnapshotTest, ABudgetSaysHowMuchMoreIsNeeded) {
  StoreOptions options = Options();
  options.max_bytes = 3 * kTestPageBytes + kIoAlignment;
  auto store = Open(options);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(store->Allocate(kTestPageBytes).ok());
  const absl::Status status = store->Allocate(kTestPageBytes).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrCat(kTestPageBytes - kIoAlignment, " more")));
}

}  // namespace
}  // namespace spillway::io
