// SPDX-License-Identifier: Apache-2.0
//
// Tests stores of which a segment file is missing, opened with StoreOptions::on_lost_file.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "io/posix_io_engine.h"
#include "io/store/store_check.h"
#include "tests/io/store/store_test_util.h"

namespace spillway::io {
namespace {

using ::testing::HasSubstr;

// The snapshot lies in the first file, the commit after it in the second as well, which is lost.
class LostFileTest : public StoreTest {
 protected:
  void SetUp() override {
    options_ = Options();
    options_.segment_bytes = 4 * kTestPageBytes;
    {
      auto store = Open(options_);
      ASSERT_TRUE(store);
      const TensorIndex w = *store->AddTensor({"w", "{}", 4}, false);
      for (uint64_t page = 0; page < 4; ++page)
        ASSERT_TRUE(WritePage(*store, io_, w, page, 1).ok());
      ASSERT_TRUE(store->Commit("one").ok());
      ASSERT_TRUE(store->Snapshot("whole").ok());
      for (uint64_t page = 0; page < 2; ++page)
        ASSERT_TRUE(WritePage(*store, io_, w, page, 2).ok());
      ASSERT_TRUE(store->Commit("two").ok());
    }
    lost_ = folder_ / "store/spillway-segment-000001";
    ASSERT_TRUE(std::filesystem::exists(lost_));
    ASSERT_FALSE(std::filesystem::exists(folder_ / "store/spillway-segment-000002"));
    std::filesystem::rename(lost_, folder_ / "aside");
    EXPECT_TRUE(absl::IsDataLoss(OpenError(options_)));
    options_.on_lost_file = [this](std::string_view what) { notes_.emplace_back(what); };
  }
  // Expects that the check of the store finds damage, or none.
  void ExpectWhole(bool whole) {
    const auto view = StoreView::Open(options_.folders, StoreView::Wanted::kAlone);
    ASSERT_TRUE(view.ok()) << view.status();
    const auto report = CheckStore(**view, PosixIoEngine::Create({})->get(), {});
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_EQ(report->damage == 0, whole)
        << (report->findings.empty() ? "" : report->findings[0].message);
  }

  StoreOptions options_;
  std::string lost_;
  std::vector<std::string> notes_;
};

TEST_F(LostFileTest, AWholeSnapshotIsRestoredAndATrimForgetsTheFile) {
  {
    auto store = Open(options_);
    ASSERT_TRUE(store);
    ASSERT_EQ(notes_.size(), 1u);
    EXPECT_THAT(notes_[0], HasSubstr(lost_));
    const TensorIndex w = **store->FindTensor("w");
    const auto page = store->FindPage(w, 0);
    ASSERT_TRUE(page.ok() && page->has_value());
    const absl::Status read = store->File((*page)->extent).status();
    EXPECT_TRUE(absl::IsDataLoss(read)) << read;
    EXPECT_THAT(std::string(read.message()), HasSubstr(lost_));
    EXPECT_TRUE(PageIs(*store, io_, w, 3, 1)) << "what lies elsewhere is read";
    ASSERT_TRUE(store->Snapshot("broken").ok());
    ASSERT_TRUE(store->Restore("whole").ok());
    for (uint64_t each = 0; each < 4; ++each) EXPECT_TRUE(PageIs(*store, io_, w, each, 1));
    const absl::Status back = store->Restore("broken");
    EXPECT_TRUE(absl::IsDataLoss(back)) << back;
    EXPECT_THAT(std::string(back.message()), HasSubstr(lost_));
    EXPECT_EQ(store->UserState(), "one") << "what was restored stands";
    EXPECT_TRUE(store->Trim().ok());
  }
  ExpectWhole(false);  // the snapshot "broken" needs the file
  {
    auto store = Open(options_);
    ASSERT_TRUE(store);
    ASSERT_TRUE(store->Drop("broken").ok());
    ASSERT_TRUE(store->Trim().ok());
  }
  ExpectWhole(true);
  options_.on_lost_file = {};
  EXPECT_EQ(Open(options_)->UserState(), "one");
}

TEST_F(LostFileTest, NothingIsAllocatedInItAndNoCommitNamesIt) {
  {
    auto store = Open(options_);
    ASSERT_TRUE(store);
    const TensorIndex w = **store->FindTensor("w");
    ASSERT_TRUE(WritePage(*store, io_, w, 0, 3).ok()) << "its free space is not used";
    const absl::Status status = store->Commit("three");
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(lost_)) << "page 1 lies in it";
    ASSERT_TRUE(WritePage(*store, io_, w, 1, 3).ok());
    const absl::Status whole = store->Commit("three");
    ASSERT_TRUE(whole.ok()) << whole;
    // What the commits free in the file is not used either.
    for (uint64_t version = 4; version < 12; ++version) {
      for (uint64_t page = 0; page < 4; ++page)
        ASSERT_TRUE(WritePage(*store, io_, w, page, version).ok());
      ASSERT_TRUE(store->Commit("more").ok());
    }
    EXPECT_FALSE(std::filesystem::exists(lost_));
  }
  ExpectWhole(false);
  // The file comes back as it was: all in it is free.
  std::filesystem::rename(folder_ / "aside", lost_);
  ExpectWhole(true);
  options_.on_lost_file = {};
  auto store = Open(options_);
  ASSERT_TRUE(store);
  EXPECT_TRUE(PageIs(*store, io_, **store->FindTensor("w"), 1, 11));
  ASSERT_TRUE(store->Restore("whole").ok());
  EXPECT_TRUE(PageIs(*store, io_, **store->FindTensor("w"), 1, 1));
}

}  // namespace
}  // namespace spillway::io
