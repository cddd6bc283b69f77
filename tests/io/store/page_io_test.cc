// SPDX-License-Identifier: Apache-2.0
//
// Tests PageIo with a real I/O engine and a store that consists of a file and a map. PageIo needs
// little of a store, and the tests can inspect this one.

#include "io/store/page_io.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "io/checksum.h"
#include "io/faulty_io_engine.h"
#include "io/make_io_engine.h"
#include "src/base/mutex.h"
#include "tests/io/io_test_util.h"
#include "tests/io/io_uring_here.h"
#include "tests/seed.h"

namespace spillway::io {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kPageBytes = 64 * 1024;
constexpr uint64_t kFileBytes = 64 << 20;
constexpr uint64_t kPacked = PackedBytes(kPageBytes);

// Allocates extents from the file's start on, one after another, and reuses none. It records those
// that are allocated and not released.
class FileStore final : public Store {
 public:
  FileStore(const DirectFile* file, FileId id) : file_(file), id_(id) {}

  uint64_t page_bytes() const override { return kPageBytes; }
  uint16_t num_devices() const override { return 1; }
  const std::string& id() const override { return file_->path(); }
  uint64_t commit_number() const override { return 0; }
  std::optional<DeviceProfile> Profile(uint16_t) const override { return profile; }
  void SetSpeed(uint16_t, double) override {}
  absl::StatusOr<Extent> Allocate(uint32_t size_bytes) override {
    if (allocations_left == 0) return absl::ResourceExhaustedError("the budget is spent");
    if (allocations_left > 0) --allocations_left;
    next_ += gap_bytes;
    const Extent extent = {0, 0, next_, size_bytes};
    next_ += size_bytes;
    taken.insert(extent.offset);
    return extent;
  }
  void Release(const Extent& extent) override { EXPECT_EQ(taken.erase(extent.offset), 1u); }
  void Retire(const Extent& extent, const absl::Status&) override { Release(extent); }
  absl::StatusOr<FileUse> File(const Extent&) override {
    if (files_in_use == max_files_in_use) return absl::ResourceExhaustedError("no descriptor");
    ++files_in_use;
    return FileUse(new FileId(id_), [this](const FileId* id) {
      --files_in_use;
      delete id;
    });
  }
  std::string Path(const Extent&) const override { return file_->path(); }
  absl::StatusOr<std::optional<PageRecord>> FindPage(TensorIndex tensor, uint64_t page) override {
    const auto found = pages.find({tensor, page});
    return found == pages.end() ? std::nullopt : std::optional(found->second);
  }
  void Record(TensorIndex tensor, uint64_t page, const PageRecord& record) override {
    EXPECT_TRUE(taken.contains(record.extent.offset));
    pages[{tensor, page}] = record;
  }
  void Forget(TensorIndex tensor, uint64_t page) override { pages.erase({tensor, page}); }

  // PageIo does not call these.
  absl::StatusOr<std::optional<TensorIndex>> FindTensor(std::string_view) override { return No(); }
  const TensorRecord& Tensor(TensorIndex) const override { std::abort(); }
  absl::StatusOr<TensorIndex> AddTensor(TensorRecord, bool) override { return No(); }
  void RemoveTensor(TensorIndex) override { std::abort(); }
  absl::Status Commit(std::string_view) override { return No(); }
  std::optional<std::string> UserState() const override { return std::nullopt; }
  absl::Status Snapshot(std::string_view) override { return No(); }
  absl::StatusOr<std::vector<SnapshotRecord>> Snapshots() override { return No(); }
  absl::Status Restore(std::string_view) override { return No(); }
  absl::Status Drop(std::string_view) override { return No(); }
  absl::StatusOr<uint64_t> Trim() override { return No(); }
  absl::Status SetProfile(uint16_t, const DeviceProfile&) override { return No(); }
  uint64_t used_bytes() const override { return 0; }
  uint64_t available_bytes() const override { return 0; }

  std::optional<DeviceProfile> profile;
  int allocations_left = -1;  // negative: any number
  int max_files_in_use = -1;  // each use counts as another file; negative: any number
  int files_in_use = 0;
  uint64_t gap_bytes = 0;    // between extents
  std::set<uint64_t> taken;  // offsets
  std::map<std::pair<TensorIndex, uint64_t>, PageRecord> pages;

 private:
  static absl::Status No() { return absl::UnimplementedError("not here"); }

  const DirectFile* const file_;
  const FileId id_;
  uint64_t next_ = 0;
};

struct PageIoParam {
  IoKind engine;
  int hash_threads;
};

class PageIoTest : public ::testing::TestWithParam<PageIoParam> {
 protected:
  void SetUp() override {
    if (!CanRun(GetParam().engine)) GTEST_SKIP() << kNoIoUring;
    file_ = NamelessFile();
    ASSERT_EQ(::ftruncate(file_.fd(), kFileBytes), 0);
    auto engine = FaultyIoEngine::Create(1, [&](ResultHook hook) {
      auto counting = [this, hook](const IoRequest& request, int64_t result) {
        const int64_t answer = hook(request, result);
        if (answer == request.size_bytes) {
          base::MutexLock lock(&mutex_);
          sizes_.push_back(request.size_bytes);
        }
        return answer;
      };
      return MakeIoEngine(GetParam().engine, {.queue_depth = 1, .result_hook = counting},
                          testing::TempDir());
    });
    ASSERT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
    id_ = *engine_->AddFile(file_.fd(), "segment", 0);
    store_ = std::make_unique<FileStore>(&file_, id_);
    Restart();
  }
  // Makes a new PageIo, with the profile that the store has now.
  void Restart(Checksums checksums = Checksums::kXxh3) {
    const PageIoOptions options = {.checksums = checksums, .hash_threads = GetParam().hash_threads};
    io_ = std::make_unique<PageIo>(store_.get(), engine_.get(), options);
  }

  std::map<uint64_t, absl::Status> ReapAll() {
    std::map<uint64_t, absl::Status> ended;
    while (io_->in_flight() > 0) {
      std::vector<PageIo::Result> results;
      io_->Reap(absl::InfiniteDuration(), &results);
      for (const PageIo::Result& result : results) {
        EXPECT_TRUE(ended.emplace(result.tag, result.status).second) << result.tag;
      }
    }
    return ended;
  }
  absl::Status Write(TensorIndex tensor, uint64_t first_page, uint64_t bytes, uint64_t pattern) {
    const AlignedBuffer memory(RoundUp(bytes));
    FillPattern({memory.data(), bytes}, pattern);
    io_->Write(7, tensor, first_page, bytes, memory.data());
    return ReapAll().at(7);
  }
  absl::Status Read(TensorIndex tensor, uint64_t first_page, uint64_t bytes, uint64_t pattern) {
    const AlignedBuffer memory(RoundUp(bytes));
    io_->Read(8, tensor, first_page, bytes, memory.data());
    const absl::Status status = ReapAll().at(8);
    if (status.ok()) {
      EXPECT_TRUE(HasPattern({memory.data(), bytes}, pattern));
    }
    return status;
  }
  static uint64_t RoundUp(uint64_t bytes) {
    return std::max<uint64_t>(1, (bytes + kIoAlignment - 1) / kIoAlignment) * kIoAlignment;
  }
  void FlipBitAt(uint64_t offset) {
    std::vector<std::byte> block(kIoAlignment);
    const AlignedBuffer memory(kIoAlignment);
    const auto at = static_cast<off_t>(offset / kIoAlignment * kIoAlignment);
    ASSERT_EQ(::pread(file_.fd(), memory.data(), kIoAlignment, at), ssize_t{kIoAlignment});
    memory.data()[offset % kIoAlignment] ^= std::byte{4};
    ASSERT_EQ(::pwrite(file_.fd(), memory.data(), kIoAlignment, at), ssize_t{kIoAlignment});
  }

  DirectFile file_;
  base::Mutex mutex_;            // the engine's threads add to sizes_ while operations run
  std::vector<uint32_t> sizes_;  // of requests that ended, in order
  std::unique_ptr<FaultyIoEngine> engine_;
  FileId id_;
  std::unique_ptr<FileStore> store_;
  std::unique_ptr<PageIo> io_;
};

TEST_P(PageIoTest, WhatWasWrittenIsRead) {
  const uint64_t sizes[] = {1,
                            kPacked,
                            kPacked + 1,
                            kIoAlignment,
                            kPageBytes,
                            kPageBytes + 1,
                            10 * kPageBytes,
                            3 * kPageBytes - 4095,
                            65,
                            40 * kPageBytes - 1};
  TensorIndex tensor = 0;
  for (const uint64_t bytes : sizes) {
    SCOPED_TRACE(bytes);
    ASSERT_TRUE(Write(tensor, 3, bytes, bytes).ok());
    ASSERT_TRUE(Read(tensor, 3, bytes, bytes).ok());
    ++tensor;
  }
  // Reads all of them again, after the last write.
  tensor = 0;
  for (const uint64_t bytes : sizes) ASSERT_TRUE(Read(tensor++, 3, bytes, bytes).ok());
}

TEST_P(PageIoTest, EveryPageHasItsOwnRecord) {
  constexpr uint64_t kBytes = 2 * kPageBytes + 100;
  const AlignedBuffer memory(RoundUp(kBytes));
  FillPattern(memory.span(), 1);
  io_->Write(1, 0, 0, kBytes, memory.data());
  ASSERT_TRUE(ReapAll().at(1).ok());
  ASSERT_EQ(store_->pages.size(), 3u);
  for (uint64_t page = 0; page < 3; ++page) {
    const PageRecord& record = store_->pages.at({0, page});
    const uint32_t bytes = page < 2 ? kPageBytes : 100;
    EXPECT_EQ(record.content_bytes, bytes);
    EXPECT_EQ(record.extent.size_bytes, RoundUp(bytes));
    EXPECT_EQ(record.checksum, Checksum({memory.data() + page * kPageBytes, bytes}));
    EXPECT_FALSE(record.packed);
  }
  // A page of a larger write can be read alone.
  const AlignedBuffer part(kPageBytes);
  io_->Read(2, 0, 1, kPageBytes, part.data());
  ASSERT_TRUE(ReapAll().at(2).ok());
  EXPECT_EQ(0, std::memcmp(part.data(), memory.data() + kPageBytes, kPageBytes));
}

TEST_P(PageIoTest, NeighboursShareRequestsOfTheDevicesSize) {
  ASSERT_TRUE(Write(0, 0, 40 * kPageBytes, 1).ok());
  EXPECT_EQ(sizes_, (std::vector<uint32_t>{2 << 20, 1 << 19}));
  sizes_.clear();
  ASSERT_TRUE(Read(0, 0, 40 * kPageBytes, 1).ok());
  EXPECT_EQ(sizes_, (std::vector<uint32_t>{2 << 20, 1 << 19}));

  // The requests are smaller than a page and do not divide it evenly.
  store_->profile = DeviceProfile{.request_bytes = 24 * 1024 + 5};
  Restart();
  sizes_.clear();
  const AlignedBuffer part(2 * kPageBytes);
  io_->Read(9, 0, 0, 2 * kPageBytes, part.data());
  ASSERT_TRUE(ReapAll().at(9).ok());
  EXPECT_EQ(sizes_.size(), (2 * kPageBytes + 24 * 1024 - 1) / (24 * 1024));

  // Extents with gaps between them need a request for each page.
  store_->profile.reset();
  store_->gap_bytes = kIoAlignment;
  Restart();
  sizes_.clear();
  ASSERT_TRUE(Write(1, 0, 3 * kPageBytes, 2).ok());
  ASSERT_TRUE(Read(1, 0, 3 * kPageBytes, 2).ok());
  EXPECT_EQ(sizes_, std::vector<uint32_t>(6, kPageBytes));
}

TEST_P(PageIoTest, SmallOperationsOfABatchShareAPack) {
  constexpr int kWrites = 50;
  const auto bytes_of = [](int i) {
    return i % 10 == 9 ? uint64_t{5000} : 100 + static_cast<uint64_t>(i) * 17;
  };
  std::vector<AlignedBuffer> memory;
  for (int i = 0; i < kWrites; ++i) {
    memory.emplace_back(RoundUp(bytes_of(i)));
    FillPattern({memory.back().data(), bytes_of(i)}, static_cast<uint64_t>(i));
    io_->Write(static_cast<uint64_t>(i), static_cast<TensorIndex>(i), 0, bytes_of(i),
               memory.back().data());
  }
  for (const auto& [tag, status] : ReapAll()) EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(store_->taken.size(), 1u);
  ASSERT_EQ(sizes_.size(), 1u);
  uint64_t end = 0;
  for (const auto& [key, record] : store_->pages) {
    EXPECT_TRUE(record.packed);
    EXPECT_EQ(record.extent.size_bytes, sizes_[0]);
    EXPECT_GE(record.skip_bytes, end);
    EXPECT_LE(record.skip_bytes % kIoAlignment + record.content_bytes,
              RoundUp(record.content_bytes));
    end = record.skip_bytes + record.content_bytes;
  }
  EXPECT_EQ(RoundUp(end), sizes_[0]);  // no more than is needed
  for (int i = 0; i < kWrites; ++i) {
    EXPECT_TRUE(Read(static_cast<TensorIndex>(i), 0, bytes_of(i), static_cast<uint64_t>(i)).ok())
        << i;
  }
}

TEST_P(PageIoTest, AFullPackGoesOffAndTheNextOneBegins) {
  constexpr uint64_t kWrites = 5;
  const AlignedBuffer memory(kWrites * kPacked);
  for (uint64_t i = 0; i < kWrites; ++i) {
    FillPattern({memory.data() + i * kPacked, kPacked}, i);
    io_->Write(i, static_cast<TensorIndex>(i), 0, kPacked, memory.data() + i * kPacked);
  }
  for (const auto& [tag, status] : ReapAll()) EXPECT_TRUE(status.ok()) << status;
  std::sort(sizes_.begin(), sizes_.end());
  EXPECT_EQ(sizes_, (std::vector<uint32_t>{kPacked, kPackBytes, kPackBytes}));
  for (uint64_t i = 0; i < kWrites; ++i) {
    EXPECT_TRUE(Read(static_cast<TensorIndex>(i), 0, kPacked, i).ok()) << i;
  }
}

// The operations need more staging memory than there is.
TEST_P(PageIoTest, ThousandsOfSmallOperationsAllArrive) {
  constexpr uint64_t kWrites = 3000;
  const AlignedBuffer memory(kWrites * kIoAlignment);
  for (uint64_t i = 0; i < kWrites; ++i) {
    std::byte* const at = memory.data() + i * kIoAlignment;
    FillPattern({at, 1500}, i);
    io_->Write(i, static_cast<TensorIndex>(i), 0, 1500, at);
  }
  const auto written = ReapAll();
  ASSERT_EQ(written.size(), kWrites);
  std::memset(memory.data(), 0, memory.size());
  for (uint64_t i = 0; i < kWrites; ++i) {
    ASSERT_TRUE(written.at(i).ok());
    io_->Read(i, static_cast<TensorIndex>(i), 0, 1500, memory.data() + i * kIoAlignment);
  }
  for (const auto& [tag, status] : ReapAll()) EXPECT_TRUE(status.ok()) << status;
  for (uint64_t i = 0; i < kWrites; ++i) {
    ASSERT_TRUE(HasPattern({memory.data() + i * kIoAlignment, 1500}, i)) << i;
  }
}

TEST_P(PageIoTest, AMismatchIsReadOnceMore) {
  for (const uint64_t bytes : {uint64_t{5 * kPageBytes}, uint64_t{700}}) {
    ASSERT_TRUE(Write(0, 0, bytes, 1).ok());
    engine_->Inject({.kind = Fault::Kind::kBitFlip, .op = IoOp::kRead});
    sizes_.clear();
    // The flipped bit may lie beside a packed page.
    ASSERT_TRUE(Read(0, 0, bytes, 1).ok());
    EXPECT_LE(sizes_.size(), 2u);
    // Only the page that does not match is read again.
    if (bytes > kPageBytes) {
      EXPECT_EQ(sizes_, (std::vector<uint32_t>{5 * kPageBytes, kPageBytes}));
    }
  }
}

TEST_P(PageIoTest, DamageThatStaysIsDataLoss) {
  ASSERT_TRUE(Write(0, 10, 5 * kPageBytes, 1).ok());
  const PageRecord damaged = store_->pages.at({0, 12});
  FlipBitAt(damaged.extent.offset + 12345);
  const absl::Status status = Read(0, 10, 5 * kPageBytes, 1);
  EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(std::string(status.message()), HasSubstr("page 12 in "));
  EXPECT_THAT(std::string(status.message()), HasSubstr(file_.path()));
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrCat("at offset ", damaged.extent.offset)));
  // The other pages are unaffected.
  const AlignedBuffer first(kPageBytes);
  io_->Read(9, 0, 10, kPageBytes, first.data());
  EXPECT_TRUE(ReapAll().at(9).ok());

  ASSERT_TRUE(Write(1, 0, 600, 2).ok());
  const PageRecord packed = store_->pages.at({1, 0});
  FlipBitAt(packed.extent.offset + packed.skip_bytes + 599);
  EXPECT_EQ(Read(1, 0, 600, 2).code(), absl::StatusCode::kDataLoss);
}

// Memory beside the page's must not be written.
TEST_P(PageIoTest, ARecordOfAnotherSizeIsDataLoss) {
  constexpr uint64_t kBytes = kPageBytes + 5000;
  ASSERT_TRUE(Write(0, 0, kBytes, 1).ok());
  PageRecord& last = store_->pages.at({0, 1});
  for (const uint32_t bytes : {4096u, 4999u, 5001u, 12288u, uint32_t{2 * kPageBytes}}) {
    last.content_bytes = bytes;
    const absl::Status status = Read(0, 0, kBytes, 1);
    EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss) << bytes;
    EXPECT_THAT(std::string(status.message()), HasSubstr("page 1 has 5000 bytes"));
  }
  last.content_bytes = 5000;
  EXPECT_TRUE(Read(0, 0, kBytes, 1).ok());

  ASSERT_TRUE(Write(1, 0, 600, 2).ok());
  store_->pages.at({1, 0}).skip_bytes = 4000;  // 104 bytes in one unit and 496 in the next
  EXPECT_EQ(Read(1, 0, 600, 2).code(), absl::StatusCode::kDataLoss);
}

TEST_P(PageIoTest, WithoutChecksumsNothingIsCompared) {
  Restart(Checksums::kNone);
  ASSERT_TRUE(Write(0, 0, kPageBytes, 1).ok());
  EXPECT_EQ(store_->pages.at({0, 0}).checksum, 0u);
  EXPECT_TRUE(Read(0, 0, kPageBytes, 1).ok());
  FlipBitAt(store_->pages.at({0, 0}).extent.offset);
  const AlignedBuffer memory(kPageBytes);
  io_->Read(8, 0, 0, kPageBytes, memory.data());
  EXPECT_TRUE(ReapAll().at(8).ok());
  Restart();
  EXPECT_EQ(Read(0, 0, kPageBytes, 1).code(), absl::StatusCode::kDataLoss);
}

TEST_P(PageIoTest, AFailedWriteRecordsNothingAndGivesItsExtentsBack) {
  for (const uint64_t bytes : {uint64_t{40 * kPageBytes}, uint64_t{700}}) {
    SCOPED_TRACE(bytes);
    for (const Fault::Kind kind : {Fault::Kind::kEio, Fault::Kind::kEnospc}) {
      engine_->Inject({.kind = kind, .op = IoOp::kWrite, .skip = bytes > kPageBytes ? 1u : 0u});
      EXPECT_FALSE(Write(0, 0, bytes, 1).ok());
      EXPECT_TRUE(store_->pages.empty());
      EXPECT_TRUE(store_->taken.empty());
    }
    ASSERT_TRUE(Write(0, 0, bytes, 1).ok());
    EXPECT_TRUE(Read(0, 0, bytes, 1).ok());
    io_->Forget(0, 0, bytes);
    EXPECT_TRUE(store_->pages.empty());
    store_->taken.clear();
  }
}

TEST_P(PageIoTest, ABudgetThatEndsAmidAnOperationFailsItWhole) {
  store_->allocations_left = 30;
  EXPECT_EQ(Write(0, 0, 40 * kPageBytes, 1).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(store_->pages.empty());
  EXPECT_TRUE(store_->taken.empty());
  EXPECT_EQ(Write(0, 0, 5, 1).code(), absl::StatusCode::kResourceExhausted);
  store_->allocations_left = -1;
  EXPECT_TRUE(Write(0, 0, 5, 1).ok());
}

TEST_P(PageIoTest, AReadErrorIsNotTriedAgain) {
  ASSERT_TRUE(Write(0, 0, 4 * kPageBytes, 1).ok());
  engine_->Inject({.kind = Fault::Kind::kEio, .op = IoOp::kRead});
  EXPECT_FALSE(Read(0, 0, 4 * kPageBytes, 1).ok());
  EXPECT_TRUE(Read(0, 0, 4 * kPageBytes, 1).ok());
  const absl::Status missing = Read(0, 2, 4 * kPageBytes, 1);  // two pages are missing
  EXPECT_THAT(std::string(missing.message()), HasSubstr("page 4 is not in the store"));
}

// Runs many operations of all sizes at once, in rounds that overwrite the same pages, some with
// faults. A page's record is always that of the last successful write.
TEST_P(PageIoTest, ManyOperationsAtOnce) {
  std::mt19937_64 random(test::Seed());
  constexpr uint64_t kTensors = 24;
  constexpr uint64_t kMostBytes = 4 * kPageBytes;
  const AlignedBuffer memory(kTensors * kMostBytes);
  std::map<uint64_t, std::pair<uint64_t, uint64_t>> contents;  // by tensor: bytes, pattern
  store_->profile = DeviceProfile{.request_bytes = 96 * 1024};
  Restart();
  for (uint64_t round = 1; round <= 12; ++round) {
    std::map<uint64_t, std::pair<uint64_t, uint64_t>> writing;
    if (round % 3 == 0) {
      engine_->Inject({.kind = Fault::Kind::kEio, .op = IoOp::kWrite, .skip = random() % 20});
      engine_->Inject({.kind = Fault::Kind::kBitFlip, .op = IoOp::kRead, .skip = random() % 20});
    }
    for (uint64_t tensor = 0; tensor < kTensors; ++tensor) {
      std::byte* const at = memory.data() + tensor * kMostBytes;
      if (!contents.contains(tensor) || random() % 2 == 0) {
        const uint64_t bytes = 1 + random() % (random() % 2 == 0 ? 3000 : kMostBytes);
        FillPattern({at, bytes}, round * 100 + tensor);
        writing[tensor] = {bytes, round * 100 + tensor};
        io_->Write(tensor, static_cast<TensorIndex>(tensor), 0, bytes, at);
      } else {
        io_->Read(tensor, static_cast<TensorIndex>(tensor), 0, contents[tensor].first, at);
      }
    }
    for (const auto& [tensor, status] : ReapAll()) {
      const bool wrote = writing.contains(tensor);
      if (status.ok() && wrote) contents[tensor] = writing[tensor];
      if (wrote) continue;
      ASSERT_TRUE(status.ok()) << status;
      const auto [bytes, pattern] = contents[tensor];
      ASSERT_TRUE(HasPattern({memory.data() + tensor * kMostBytes, bytes}, pattern)) << tensor;
    }
    engine_->Clear();
  }
}

// Requests wait for others of the same operation to end if each uses its own file and only few
// files may be open.
TEST_P(PageIoTest, WaitsForFilesThatAreInUse) {
  store_->gap_bytes = kIoAlignment;  // each page is a request
  store_->max_files_in_use = 3;
  const AlignedBuffer memory(32 * kPageBytes);
  io_->Write(1, 0, 0, 32 * kPageBytes, memory.data());
  EXPECT_LE(store_->files_in_use, 3);
  EXPECT_EQ(ReapAll().at(1), absl::OkStatus());
  EXPECT_EQ(store_->files_in_use, 0);
  store_->max_files_in_use = 0;
  io_->Read(2, 0, 0, kPageBytes, memory.data());
  EXPECT_TRUE(absl::IsResourceExhausted(ReapAll().at(2))) << "there is nothing to wait for";
}

INSTANTIATE_TEST_SUITE_P(Engines, PageIoTest,
                         testing::Values(PageIoParam{IoKind::kUring, 1},
                                         PageIoParam{IoKind::kUring, 4},
                                         PageIoParam{IoKind::kPosix, 1},
                                         PageIoParam{IoKind::kPosix, 4}),
                         [](const auto& given) {
                           const PageIoParam& param = given.param;
                           const bool is_uring = param.engine == IoKind::kUring;
                           return absl::StrCat(is_uring ? "Uring" : "Posix", param.hash_threads);
                         });

}  // namespace
}  // namespace spillway::io
