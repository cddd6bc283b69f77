// SPDX-License-Identifier: Apache-2.0
//
// Utilities for the store's tests: an IoEngine that only names files, pages with recognisable
// bytes, and direct access to the catalog with SQLite, as with the sqlite3 command.

#ifndef SPILLWAY_TESTS_IO_STORE_STORE_TEST_UTIL_H_
#define SPILLWAY_TESTS_IO_STORE_STORE_TEST_UTIL_H_

#include <gtest/gtest.h>
#include <sqlite3.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/checksum.h"
#include "io/io_engine.h"
#include "io/store/sqlite_vfs.h"
#include "io/store/store.h"
#include "tests/temp_folder.h"

namespace spillway::io {

inline constexpr uint64_t kTestPageBytes = 64 * 1024;

using test::FastPlace;
using test::FilesIn;
using test::TempFolder;

// Records files and transfers nothing: tests read and write through the descriptor themselves.
class NamingIoEngine final : public IoEngine {
 public:
  std::string_view name() const override { return "naming"; }
  absl::StatusOr<FileId> AddFile(int fd, std::string path, uint16_t) override {
    if (fail_next_add_)
      return std::exchange(fail_next_add_, false), absl::ResourceExhaustedError("table full");
    files_[next_] = {fd, std::move(path)};
    return FileId{next_++};
  }
  absl::Status RemoveFile(FileId file) override {
    return files_.erase(file.value) == 1 ? absl::OkStatus() : absl::NotFoundError("no such file");
  }
  void AddBuffer(std::span<std::byte>) override {}
  void RemoveBuffers() override {}
  int unregistered_buffers() const override { return 0; }
  void SetDepths(uint16_t, const QueueDepths&) override {}
  void Submit(std::span<const IoRequest>) override { std::abort(); }
  void Reap(absl::Duration, std::vector<IoCompletion>*) override { std::abort(); }
  void Wake() override {}
  int in_flight() const override { return 0; }

  int fd(FileId file) const { return files_.at(file.value).first; }
  size_t num_files() const { return files_.size(); }
  void FailNextAdd() { fail_next_add_ = true; }

 private:
  std::map<int32_t, std::pair<int, std::string>> files_;
  int32_t next_ = 0;
  bool fail_next_add_ = false;
};

// One aligned page of memory.
class PageBuffer {
 public:
  PageBuffer()
      : bytes_(static_cast<std::byte*>(std::aligned_alloc(kIoAlignment, kTestPageBytes))) {}
  // Fills the page with bytes that identify the tensor, the page and the version.
  void Fill(std::string_view tensor, uint64_t page, uint64_t version) {
    uint64_t name = 0;
    for (const char c : tensor) name = name * 31 + static_cast<unsigned char>(c);
    for (uint64_t i = 0; i < kTestPageBytes / 8; ++i) {
      const uint64_t word = (name << 48) ^ (page << 32) ^ (version << 16) ^ i;
      std::memcpy(bytes_.get() + i * 8, &word, 8);
    }
  }
  std::span<std::byte> span() { return {bytes_.get(), kTestPageBytes}; }

 private:
  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  std::unique_ptr<std::byte[], Free> bytes_;
};

// Allocates, writes and records one page, without the mover.
inline absl::Status WritePage(Store& store, const NamingIoEngine& io, TensorIndex tensor,
                              uint64_t page, uint64_t version) {
  PageBuffer buffer;
  buffer.Fill(store.Tensor(tensor).name, page, version);
  const absl::StatusOr<Extent> extent = store.Allocate(kTestPageBytes);
  if (!extent.ok()) return extent.status();
  const absl::StatusOr<FileUse> file = store.File(*extent);
  if (!file.ok()) {
    store.Release(*extent);
    return file.status();
  }
  const ssize_t written = ::pwrite(io.fd(**file), buffer.span().data(), kTestPageBytes,
                                   static_cast<off_t>(extent->offset));
  if (written != static_cast<ssize_t>(kTestPageBytes)) {
    store.Release(*extent);
    return absl::UnavailableError("short write");
  }
  store.Record(tensor, page,
               {.extent = *extent,
                .content_bytes = static_cast<uint32_t>(kTestPageBytes),
                .checksum = Checksum(buffer.span())});
  return absl::OkStatus();
}

// Whether the store has the page with the bytes of that version and with their checksum.
inline ::testing::AssertionResult PageIs(Store& store, const NamingIoEngine& io, TensorIndex tensor,
                                         uint64_t page, uint64_t version) {
  const auto found_page = store.FindPage(tensor, page);
  if (!found_page.ok()) return ::testing::AssertionFailure() << found_page.status();
  const std::optional<PageRecord> record = *found_page;
  if (!record) return ::testing::AssertionFailure() << "page " << page << " was never written";
  PageBuffer found;
  PageBuffer wanted;
  wanted.Fill(store.Tensor(tensor).name, page, version);
  const absl::StatusOr<FileUse> file = store.File(record->extent);
  if (!file.ok()) return ::testing::AssertionFailure() << file.status();
  const ssize_t got = ::pread(io.fd(**file), found.span().data(), kTestPageBytes,
                              static_cast<off_t>(record->extent.offset));
  if (got != static_cast<ssize_t>(kTestPageBytes))
    return ::testing::AssertionFailure() << "short read " << got;
  if (std::memcmp(found.span().data(), wanted.span().data(), kTestPageBytes) != 0) {
    return ::testing::AssertionFailure()
           << "page " << page << " has other bytes than version " << version;
  }
  if (record->checksum != Checksum(found.span()))
    return ::testing::AssertionFailure() << "checksum of " << page;
  return ::testing::AssertionSuccess();
}

// Runs SQL on a catalog. Returns the first column of the last row, as text. Changes are sealed; if
// `vfs` is null they are made as the stock sqlite3 command would make them.
inline std::string RunSql(const std::string& path, const std::string& sql,
                          const char* vfs = SqliteVfsName()) {
  sqlite3* database = nullptr;
  std::string result;
  EXPECT_EQ(sqlite3_open_v2(path.c_str(), &database, SQLITE_OPEN_READWRITE, vfs), SQLITE_OK)
      << path;
  const auto take = [](void* out, int, char** values, char**) {
    *static_cast<std::string*>(out) = values[0] ? values[0] : "";
    return 0;
  };
  char* message = nullptr;
  EXPECT_EQ(sqlite3_exec(database, sql.c_str(), take, &result, &message), SQLITE_OK)
      << sql << ": " << message;
  sqlite3_free(message);
  sqlite3_close(database);
  return result;
}

// A folder for stores, and an engine that outlives them.
class StoreTest : public ::testing::Test {
 protected:
  StoreOptions Options() {
    StoreOptions options;
    options.folders = {folder_ / "store"};
    options.page_bytes = kTestPageBytes;
    return options;
  }
  StoreOptions TwoFolders() {
    StoreOptions options = Options();
    options.folders = {folder_ / "a", folder_ / "b"};
    return options;
  }
  // Opens a store, or fails the test.
  std::unique_ptr<Store> Open(const StoreOptions& options) {
    auto store = Store::Open(options, &io_);
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *std::move(store) : nullptr;
  }
  absl::Status OpenError(const StoreOptions& options) {
    return Store::Open(options, &io_).status();
  }
  // Makes a store with one tensor of four pages, written as version 1 and committed with "one", and
  // closes it.
  void MakeStore(const StoreOptions& options) {
    auto store = Open(options);
    ASSERT_TRUE(store);
    const TensorIndex tensor = *store->AddTensor({"w", "{}", 4}, false);
    for (uint64_t page = 0; page < 4; ++page)
      ASSERT_TRUE(WritePage(*store, io_, tensor, page, 1).ok());
    ASSERT_TRUE(store->Commit("one").ok());
  }

  TempFolder folder_;
  NamingIoEngine io_;
};

}  // namespace spillway::io

#endif  // SPILLWAY_TESTS_IO_STORE_STORE_TEST_UTIL_H_
