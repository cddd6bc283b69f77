// SPDX-License-Identifier: Apache-2.0
//
// Tests stores whose folders are removed, moved or emptied while they are open, with another store
// in their place.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "io/posix_io_engine.h"
#include "io/store/store_check.h"
#include "io/store/store_view.h"
#include "tests/io/store/store_test_util.h"

namespace spillway::io {
namespace {

using ::testing::HasSubstr;

enum class Way { kMoved, kRemoved, kEmptied };

class ReplacedStoreTest : public StoreTest, public ::testing::WithParamInterface<Way> {
 protected:
  // Makes the path of the store free for another store.
  void Displace() {
    const std::string path = Options().folders[0];
    switch (GetParam()) {
      case Way::kMoved: std::filesystem::rename(path, folder_ / "moved"); return;
      case Way::kRemoved: std::filesystem::remove_all(path); return;
      case Way::kEmptied:
        for (const std::string& name : FilesIn(path)) std::filesystem::remove(path + "/" + name);
    }
  }
  std::vector<std::string> Files() { return FilesIn(Options().folders[0]); }
  // Opens the store that takes the place, and commits four pages.
  std::unique_ptr<Store> OpenOther() {
    auto store = Open(Options());
    const TensorIndex tensor = *store->AddTensor({"other", "{}", 4}, false);
    for (uint64_t page = 0; page < 4; ++page)
      EXPECT_TRUE(WritePage(*store, io_, tensor, page, 7).ok());
    EXPECT_TRUE(store->Commit("other").ok());
    return store;
  }
  // Commits once more, closes the other store, and checks it.
  void ExpectWhole(std::unique_ptr<Store> other) {
    EXPECT_TRUE(other->Commit("other again").ok());
    other.reset();
    {
      const auto view = StoreView::Open(Options().folders, StoreView::Wanted::kAlone);
      ASSERT_TRUE(view.ok()) << view.status();
      const auto report = CheckStore(**view, PosixIoEngine::Create({})->get(), {});
      ASSERT_TRUE(report.ok()) << report.status();
      EXPECT_EQ(report->damage, 0u);
    }
    other = Open(Options());
    ASSERT_TRUE(other);
    EXPECT_EQ(other->UserState(), "other again");
    for (uint64_t page = 0; page < 4; ++page)
      EXPECT_TRUE(PageIs(*other, io_, **other->FindTensor("other"), page, 7));
  }
  static void ExpectGone(const absl::Status& status) {
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(GetParam() == Way::kMoved ? "move it back" : "were removed"));
  }
};

TEST_P(ReplacedStoreTest, AScratchStoreRemovesNothingOfTheOther) {
  StoreOptions options = Options();
  options.scratch = true;
  auto store = Open(options);
  Displace();
  auto other = OpenOther();
  const std::vector<std::string> files = Files();
  store.reset();
  EXPECT_EQ(Files(), files);
  ExpectWhole(std::move(other));
}

TEST_P(ReplacedStoreTest, AnEmptyStoreRemovesNothingOfTheOther) {
  StoreOptions options = Options();
  options.remove_if_empty = true;
  auto store = Open(options);
  Displace();
  Open(Options()).reset();
  const std::vector<std::string> files = Files();
  store.reset();
  EXPECT_EQ(Files(), files);
  ExpectWhole(OpenOther());
}

TEST_P(ReplacedStoreTest, AStoreThatHasOpenedNoFileYetTakesNoneOfTheOther) {
  MakeStore(Options());
  auto store = Open(Options());
  const TensorIndex tensor = **store->FindTensor("w");
  Displace();
  auto other = OpenOther();
  const std::vector<std::string> files = Files();
  for (uint64_t page = 0; page < 4; ++page) ExpectGone(WritePage(*store, io_, tensor, page, 2));
  ExpectGone(store->Commit("two"));
  store.reset();
  EXPECT_EQ(Files(), files);
  ExpectWhole(std::move(other));
}

TEST_P(ReplacedStoreTest, AStoreThatHasItsFilesOpenCommitsNothing) {
  auto store = Open(Options());
  const TensorIndex tensor = *store->AddTensor({"w", "{}", 4}, false);
  ASSERT_TRUE(WritePage(*store, io_, tensor, 0, 1).ok());
  Displace();
  auto other = OpenOther();
  const std::vector<std::string> files = Files();
  EXPECT_TRUE(WritePage(*store, io_, tensor, 1, 1).ok()) << "into the file that it has open";
  ExpectGone(store->Commit("one"));
  store.reset();
  EXPECT_EQ(Files(), files);
  ExpectWhole(std::move(other));
}

TEST_P(ReplacedStoreTest, AStoreThatNeedsMoreRoomIsToldThatItsFolderIsGone) {
  auto store = Open(Options());
  Displace();
  const absl::Status status = store->Allocate(kTestPageBytes).status();
  ExpectGone(status);
  EXPECT_THAT(std::string(status.message()), ::testing::Not(HasSubstr("no room")));
}

TEST_P(ReplacedStoreTest, NoCallThatChangesTheDurableStateSucceeds) {
  MakeStore(Options());
  auto store = Open(Options());
  ASSERT_TRUE(store->Snapshot("one").ok());
  Displace();
  ExpectGone(store->Commit("two"));
  ExpectGone(store->Snapshot("two"));
  ExpectGone(store->Restore("one"));
  ExpectGone(store->Drop("one"));
  ExpectGone(store->Trim().status());
}

std::string NameOf(const ::testing::TestParamInfo<Way>& way) {
  static const char* const names[] = {"Moved", "Removed", "Emptied"};
  return names[static_cast<int>(way.param)];
}

INSTANTIATE_TEST_SUITE_P(Ways, ReplacedStoreTest,
                         ::testing::Values(Way::kMoved, Way::kRemoved, Way::kEmptied), NameOf);

using ReplacedStore = StoreTest;

TEST_F(ReplacedStore, AStoreThatIsMovedBackGoesOn) {
  MakeStore(Options());
  auto store = Open(Options());
  const TensorIndex tensor = **store->FindTensor("w");
  std::filesystem::rename(folder_ / "store", folder_ / "moved");
  EXPECT_TRUE(absl::IsUnavailable(WritePage(*store, io_, tensor, 0, 2)));
  std::filesystem::rename(folder_ / "moved", folder_ / "store");
  EXPECT_TRUE(WritePage(*store, io_, tensor, 0, 2).ok());
  EXPECT_TRUE(store->Commit("two").ok());
}

// As programs do that remove old files from /tmp.
TEST_F(ReplacedStore, AScratchStoreWithoutItsLockFileLeavesNothing) {
  StoreOptions options = Options();
  options.scratch = true;
  auto store = Open(options);
  const TensorIndex tensor = *store->AddTensor({"w", "{}", 4}, false);
  ASSERT_TRUE(WritePage(*store, io_, tensor, 0, 1).ok());
  ASSERT_TRUE(std::filesystem::remove(options.folders[0] + "/spillway-lock"));
  store.reset();
  EXPECT_FALSE(std::filesystem::exists(options.folders[0]));
}

class ReplacedLogTest : public StoreTest, public ::testing::WithParamInterface<bool> {};

// A commit in a log that has no name any more would be gone with the process. What was committed
// before is in the log that is still open, and moves to the catalog when the store is closed.
TEST_P(ReplacedLogTest, NothingMoreIsCommittedAndTheLastCommitStays) {
  MakeStore(Options());
  auto store = Open(Options());
  ASSERT_TRUE(store);
  const TensorIndex tensor = **store->FindTensor("w");
  ASSERT_TRUE(WritePage(*store, io_, tensor, 0, 2).ok());
  ASSERT_TRUE(store->Commit("two").ok());
  const std::string log = Options().folders[0] + "/spillway-catalog.sqlite-wal";
  std::filesystem::remove(log);
  if (GetParam()) std::ofstream(log) << "";
  ASSERT_TRUE(WritePage(*store, io_, tensor, 0, 3).ok());
  for (int time = 0; time < 2; ++time) {
    const absl::Status status = store->Commit("three");
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(log));
    EXPECT_THAT(std::string(status.message()), HasSubstr("open the store again"));
  }
  EXPECT_TRUE(absl::IsUnavailable(store->Snapshot("s")));
  store.reset();
  store = Open(Options());
  ASSERT_TRUE(store);
  EXPECT_EQ(store->UserState(), "two");
  EXPECT_TRUE(PageIs(*store, io_, **store->FindTensor("w"), 0, 2));
  EXPECT_TRUE(store->Commit("three").ok());
}

INSTANTIATE_TEST_SUITE_P(Ways, ReplacedLogTest, ::testing::Values(false, true),
                         [](const auto& is_replaced) {
                           return is_replaced.param ? "Replaced" : "Removed";
                         });

}  // namespace
}  // namespace spillway::io
