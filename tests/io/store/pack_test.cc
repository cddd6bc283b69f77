// SPDX-License-Identifier: Apache-2.0
//
// Tests packs that hold pages of lasting and of transient tensors. A pack stays allocated exactly
// as long as one of its pages is needed, whichever tensor's pages are released first.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "io/posix_io_engine.h"
#include "io/store/page_io.h"
#include "io/store/store_check.h"
#include "tests/io/io_test_util.h"
#include "tests/io/store/store_test_util.h"

namespace spillway::io {
namespace {

constexpr uint64_t kBytes = 2304;
constexpr int kPages = 4;  // of each tensor; a pack of both takes eight units
constexpr uint64_t kPackSize = 2 * kPages * kIoAlignment;

class PackTest : public testing::Test {
 protected:
  void SetUp() override { Open(); }
  void TearDown() override { Close(); }

  void Open() {
    Close();
    engine_ = *PosixIoEngine::Create({});
    auto store =
        Store::Open({.folders = {folder_ / "store"}, .page_bytes = kTestPageBytes}, engine_.get());
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    io_ = std::make_unique<PageIo>(store_.get(), engine_.get());
    const auto known = store_->FindTensor("lasting");
    ASSERT_TRUE(known.ok()) << known.status();
    lasting_ = *known ? **known : *store_->AddTensor({"lasting", "{}", kPages}, false);
    transient_ = *store_->AddTensor({"transient", "{}", kPages}, true);
  }
  void Close() {
    io_.reset();
    store_.reset();
    engine_.reset();
  }

  // Writes every page of both tensors into one pack, alternating between the tensors.
  void WriteBoth(uint64_t version) {
    for (uint64_t page = 0; page < kPages; ++page) {
      Write(lasting_, page, version);
      Write(transient_, page, version);
    }
    Reap();
    std::set<uint64_t> extents;
    for (const TensorIndex tensor : {lasting_, transient_})
      for (uint64_t page = 0; page < kPages; ++page)
        extents.insert((*store_->FindPage(tensor, page))->extent.offset);
    ASSERT_EQ(extents.size(), 1u);
  }
  void WriteLasting(uint64_t version) {
    for (uint64_t page = 0; page < kPages; ++page) Write(lasting_, page, version);
    Reap();
  }
  void ForgetTransient(uint64_t page) { io_->Forget(transient_, page, kBytes); }
  void Commit() {
    const absl::Status status = store_->Commit("");
    ASSERT_TRUE(status.ok()) << status;
  }

  void ExpectLasting(uint64_t version) {
    for (uint64_t page = 0; page < kPages; ++page) ExpectPage(lasting_, page, version);
  }
  void ExpectPage(TensorIndex tensor, uint64_t page, uint64_t version) {
    const AlignedBuffer memory(kIoAlignment);
    io_->Read(0, tensor, page, kBytes, memory.data());
    Reap();
    EXPECT_TRUE(HasPattern({memory.data(), kBytes}, version * 100 + page)) << page;
  }

  // Closes the store, checks that it is undamaged, and opens it again.
  void Reopen() {
    Close();
    {
      auto view = StoreView::Open({folder_ / "store"}, StoreView::Wanted::kAlone);
      ASSERT_TRUE(view.ok()) << view.status();
      const auto report = CheckStore(**view, PosixIoEngine::Create({})->get(), {});
      ASSERT_TRUE(report.ok()) << report.status();
      EXPECT_EQ(report->damage, 0u) << report->findings[0].message;
      EXPECT_TRUE(report->orphans.empty());
    }
    Open();
  }

  TempFolder folder_{FastPlace()};
  std::unique_ptr<Store> store_;
  TensorIndex lasting_ = 0, transient_ = 0;

 private:
  void Write(TensorIndex tensor, uint64_t page, uint64_t version) {
    memory_.emplace_back(kIoAlignment);
    FillPattern({memory_.back().data(), kBytes}, version * 100 + page);
    io_->Write(page, tensor, page, kBytes, memory_.back().data());
  }
  void Reap() {
    while (io_->in_flight() > 0) {
      std::vector<PageIo::Result> results;
      io_->Reap(absl::InfiniteDuration(), &results);
      for (const PageIo::Result& result : results) EXPECT_TRUE(result.status.ok()) << result.status;
    }
    memory_.clear();
  }

  std::unique_ptr<IoEngine> engine_;
  std::unique_ptr<PageIo> io_;
  std::vector<AlignedBuffer> memory_;
};

TEST_F(PackTest, TransientPagesThatGoLeaveThePackToTheLastingOnes) {
  WriteBoth(1);
  ForgetTransient(0);
  Commit();
  for (uint64_t page = 1; page < kPages; ++page) ForgetTransient(page);
  EXPECT_EQ(store_->used_bytes(), kPackSize);
  ExpectLasting(1);
  Reopen();
  ExpectLasting(1);
  WriteLasting(2);
  Commit();
  EXPECT_EQ(store_->used_bytes(), kPackSize / 2) << "the pack of both is free";
  Reopen();
  ExpectLasting(2);
}

TEST_F(PackTest, TransientPagesKeepAPackThatNoCommitNames) {
  WriteBoth(1);
  WriteLasting(2);
  Commit();
  EXPECT_EQ(store_->used_bytes(), kPackSize + kPackSize / 2);
  for (uint64_t page = 0; page < kPages; ++page) ExpectPage(transient_, page, 1);
  for (uint64_t page = 0; page + 1 < kPages; ++page) ForgetTransient(page);
  EXPECT_EQ(store_->used_bytes(), kPackSize + kPackSize / 2);
  ForgetTransient(kPages - 1);
  EXPECT_EQ(store_->used_bytes(), kPackSize / 2);
  Reopen();
  ExpectLasting(2);
}

TEST_F(PackTest, TransientPagesOutliveTheCommitThatNamedTheirPack) {
  WriteBoth(1);
  Commit();
  WriteLasting(2);
  Commit();
  WriteLasting(3);  // would reuse the pack's extent if it were free
  Commit();
  for (uint64_t page = 0; page < kPages; ++page) {
    ExpectPage(transient_, page, 1);
    ForgetTransient(page);
  }
  EXPECT_EQ(store_->used_bytes(), kPackSize / 2);
  Reopen();
  ExpectLasting(3);
}

TEST_F(PackTest, ASnapshotKeepsWhatIsItsOfAPack) {
  WriteBoth(1);
  Commit();
  ASSERT_TRUE(store_->Snapshot("one").ok());
  for (uint64_t page = 0; page < kPages; ++page) ForgetTransient(page);
  WriteLasting(2);
  Commit();
  EXPECT_EQ(store_->used_bytes(), kPackSize + kPackSize / 2);
  Reopen();
  ExpectLasting(2);
  ASSERT_TRUE(store_->Restore("one").ok());
  ExpectLasting(1);
  Reopen();
  ExpectLasting(1);
  WriteLasting(3);
  Commit();
  ASSERT_TRUE(store_->Drop("one").ok());
  EXPECT_EQ(store_->used_bytes(), kPackSize / 2);
  Reopen();
  ExpectLasting(3);
}

TEST_F(PackTest, WhatWasNotCommittedLeavesNothingBehind) {
  WriteBoth(1);
  Commit();
  for (uint64_t version = 2; version < 20; ++version) WriteBoth(version);
  EXPECT_EQ(store_->used_bytes(), 2 * kPackSize) << "packs in between were given back";
  Reopen();
  EXPECT_EQ(store_->used_bytes(), kPackSize);
  ExpectLasting(1);
}

TEST_F(PackTest, ARowOfPacksThatCountsWrongIsFound) {
  WriteLasting(1);
  Commit();
  Close();
  const std::string catalog = folder_ / "store/spillway-catalog.sqlite";
  for (const std::string column : {"num_references", "size_bytes"}) {
    const std::string update = "UPDATE packs SET " + column + " = " + column;
    RunSql(catalog, update + " + 4096");
    auto view = StoreView::Open({folder_ / "store"}, StoreView::Wanted::kAlone);
    ASSERT_TRUE(view.ok()) << view.status();
    const auto report = CheckStore(**view, PosixIoEngine::Create({})->get(), {});
    ASSERT_TRUE(report.ok()) << report.status();
    ASSERT_EQ(report->damage, 1u) << column;
    EXPECT_THAT(report->findings[0].message, ::testing::HasSubstr("its row in packs counts"));
    view->reset();
    RunSql(catalog, update + " - 4096");
  }
}

}  // namespace
}  // namespace spillway::io
