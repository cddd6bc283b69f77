// SPDX-License-Identifier: Apache-2.0
//
// Tests a store on a device with a block that cannot be written: the write that meets it fails, and
// no later one is sent there.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "io/faulty_io_engine.h"
#include "io/posix_io_engine.h"
#include "io/store/page_io.h"
#include "tests/io/io_test_util.h"
#include "tests/io/store/store_test_util.h"

namespace spillway::io {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kPages = 4;

class BadPlaceTest : public ::testing::Test {
 protected:
  BadPlaceTest() {
    auto engine = FaultyIoEngine::Create(
        1, [](ResultHook hook) { return PosixIoEngine::Create({.result_hook = std::move(hook)}); });
    EXPECT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
    Open();
  }
  void Open() {
    pages_.reset();
    store_.reset();
    StoreOptions options;
    options.folders = {folder_ / "store"};
    options.page_bytes = kTestPageBytes;
    options.max_bytes = max_bytes_;
    options.announce = [this](std::string_view what) { announced_.emplace_back(what); };
    auto store = Store::Open(options, engine_.get());
    ASSERT_TRUE(store.ok()) << store.status();
    store_ = *std::move(store);
    pages_ = std::make_unique<PageIo>(store_.get(), engine_.get());
    const auto found = *store_->FindTensor("w");
    tensor_ = found ? *found : *store_->AddTensor({"w", "{}", kPages}, false);
  }
  absl::Status Write(uint64_t page, uint64_t bytes) {
    pages_->Write(1, tensor_, page, bytes, memory_.data());
    return Result();
  }
  absl::Status Read(uint64_t page, uint64_t bytes) {
    pages_->Read(1, tensor_, page, bytes, memory_.data());
    return Result();
  }
  Extent ExtentOf(uint64_t page) { return (*store_->FindPage(tensor_, page))->extent; }

  // Makes the middle of the place unwritable that the next write of `bytes` to `page` would get,
  // and lets that write fail.
  Extent FailWrite(uint64_t page, uint64_t bytes) {
    EXPECT_TRUE(Write(page, bytes).ok());
    const Extent extent = ExtentOf(page);
    store_->Forget(tensor_, page);  // was not committed, so it is free again
    const uint64_t block = extent.offset + extent.size_bytes / 2 / kIoAlignment * kIoAlignment;
    engine_->Inject({.kind = Fault::Kind::kEio,
                     .op = IoOp::kWrite,
                     .count = UINT64_MAX,
                     .path = store_->Path(extent),
                     .begin = block,
                     .end = block + kIoAlignment});
    const absl::Status status = Write(page, bytes);
    EXPECT_THAT(std::string(status.message()), HasSubstr("Input/output error"));
    return extent;
  }
  void ExpectGoesOnElsewhere(const Extent& bad, uint64_t bytes) {
    for (int round = 0; round < 3; ++round) {
      for (uint64_t page = 0; page < kPages; ++page) {
        const absl::Status written = Write(page, bytes);
        ASSERT_TRUE(written.ok()) << written;
        const Extent extent = ExtentOf(page);
        EXPECT_TRUE(extent.segment != bad.segment || extent.offset >= bad.offset + bad.size_bytes ||
                    extent.offset + extent.size_bytes <= bad.offset);
      }
      const absl::Status committed = store_->Commit("round");
      ASSERT_TRUE(committed.ok()) << committed;
    }
    ASSERT_EQ(announced_.size(), 1u);
    EXPECT_THAT(announced_[0], HasSubstr(store_->Path(bad)));
    EXPECT_THAT(announced_[0], HasSubstr("not used again"));
  }

  TempFolder folder_;
  uint64_t max_bytes_ = UINT64_MAX;
  std::unique_ptr<FaultyIoEngine> engine_;
  std::unique_ptr<Store> store_;
  std::unique_ptr<PageIo> pages_;
  TensorIndex tensor_ = 0;
  std::vector<std::string> announced_;
  AlignedBuffer memory_{kPages * kTestPageBytes};

 private:
  absl::Status Result() {
    std::vector<PageIo::Result> results;
    while (results.empty()) pages_->Reap(absl::InfiniteDuration(), &results);
    return results[0].status;
  }
};

TEST_F(BadPlaceTest, APageIsWrittenElsewhere) {
  const Extent bad = FailWrite(0, kTestPageBytes);
  EXPECT_EQ(store_->used_bytes(), kTestPageBytes) << "the bad place counts";
  ExpectGoesOnElsewhere(bad, kTestPageBytes);
  EXPECT_EQ(store_->used_bytes(), (kPages + 1) * kTestPageBytes);
  ASSERT_TRUE(store_->Trim().ok());
  // The next opening finds only what was committed.
  Open();
  EXPECT_EQ(store_->used_bytes(), kPages * kTestPageBytes);
  for (uint64_t page = 0; page < kPages; ++page) EXPECT_TRUE(Read(page, kTestPageBytes).ok());
}

TEST_F(BadPlaceTest, APackIsWrittenElsewhere) {
  constexpr uint64_t kSmall = 1000;
  const Extent bad = FailWrite(0, kSmall);
  ExpectGoesOnElsewhere(bad, kSmall);
}

// All writes fail for a while, as when a path to the device is lost.
TEST_F(BadPlaceTest, ADeviceThatWasOutOfOrderDoesNotFillTheStore) {
  engine_->Inject({.kind = Fault::Kind::kEio, .op = IoOp::kWrite, .count = UINT64_MAX});
  for (int i = 0; i < 300; ++i) EXPECT_FALSE(Write(0, kTestPageBytes).ok());
  EXPECT_EQ(store_->used_bytes(), 256 * kTestPageBytes);
  EXPECT_EQ(announced_.size(), 1u);
  engine_->Clear();
  EXPECT_TRUE(Write(0, kTestPageBytes).ok());
}

TEST_F(BadPlaceTest, APlaceThatFailedIsTriedAgainWhereThereIsNoOther) {
  max_bytes_ = kPages * kTestPageBytes;
  Open();
  engine_->Inject({.kind = Fault::Kind::kEio, .op = IoOp::kWrite, .count = UINT64_MAX});
  for (int i = 0; i < 20; ++i) {
    const absl::Status status = Write(0, kTestPageBytes);
    EXPECT_THAT(std::string(status.message()), HasSubstr("Input/output error"));
  }
  engine_->Clear();
  for (uint64_t page = 0; page < kPages; ++page) EXPECT_TRUE(Write(page, kTestPageBytes).ok());
  EXPECT_EQ(store_->used_bytes(), kPages * kTestPageBytes);
}

TEST_F(BadPlaceTest, AFullDeviceSpoilsNoPlace) {
  engine_->Inject({.kind = Fault::Kind::kEnospc, .op = IoOp::kWrite});
  EXPECT_TRUE(absl::IsResourceExhausted(Write(0, kTestPageBytes)));
  EXPECT_EQ(store_->used_bytes(), 0u);
  EXPECT_TRUE(announced_.empty());
}

}  // namespace
}  // namespace spillway::io
