// SPDX-License-Identifier: Apache-2.0
//
// Tests a store's use of file descriptors. If the standard streams are closed, none of the store's
// files may take their numbers, or later output would be written into it. If descriptors are
// scarce, the store works with fewer files open than it has, or names the limit that it met.

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "io/make_io_engine.h"
#include "io/store/page_io.h"
#include "src/base/status_macros.h"
#include "tests/io/io_test_util.h"
#include "tests/io/io_uring_here.h"
#include "tests/io/store/store_test_util.h"

namespace spillway::io {
namespace {

using ::testing::HasSubstr;

class StoreDescriptorsTest : public StoreTest {
 protected:
  // Returns 0 if no standard stream's number is a file of the store.
  int InChild() {
    for (int fd = 0; fd <= 2; ++fd) ::close(fd);
    auto store = Store::Open(Options(), &io_);
    if (!store.ok()) return 10;
    const auto tensor = (*store)->AddTensor({"w", "{}", 1}, false);
    if (!tensor.ok() || !WritePage(**store, io_, *tensor, 0, 1).ok()) return 11;
    if (!(*store)->Commit("one").ok()) return 12;
    for (int fd = 0; fd <= 2; ++fd) {
      char target[PATH_MAX] = {};
      const std::string link = "/proc/self/fd/" + std::to_string(fd);
      if (::readlink(link.c_str(), target, sizeof(target) - 1) < 0) continue;  // still closed
      if (std::string(target).find(folder_.path()) != std::string::npos) return 20 + fd;
    }
    return 0;
  }
};

// Returns the number of open descriptors. Each test begins with only a few.
rlim_t NumOpen() {
  rlim_t open = 0;
  for (int fd = 0; fd < 1024; ++fd)
    if (::fcntl(fd, F_GETFD) >= 0) ++open;
  return open;
}

void LimitTo(rlim_t descriptors) {
  rlimit limit;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  limit.rlim_cur = descriptors;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
}

class FewDescriptorsTest : public StoreTest {
 protected:
  void SetUp() override { ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0); }
  void TearDown() override { EndLimit(); }
  void EndLimit() { ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before_), 0); }

  // The store has 64 files of one page, 64 files of two pages, and the rest in files of four.
  static constexpr uint64_t kPages = 300;
  StoreOptions ManyFiles() {
    StoreOptions options = Options();
    options.segment_bytes = kTestPageBytes;
    return options;
  }
  uint64_t NumSegmentFiles() {
    uint64_t files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(Options().folders[0]))
      files += entry.path().filename().string().starts_with("spillway-segment-");
    return files;
  }

 private:
  rlimit before_;
};

TEST_F(FewDescriptorsTest, AFileThatCannotBeMadeIsNoLackOfRoom) {
  auto store = Open(Options());
  ASSERT_TRUE(store);
  // The undefined-behaviour sanitizer needs descriptors for the first virtual call of a class.
  EXPECT_EQ(store->page_bytes(), kTestPageBytes);
  LimitTo(3);  // the numbers below are the standard streams'
  const absl::Status status = store->Allocate(kTestPageBytes).status();
  EndLimit();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("EMFILE"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("ulimit -n"));
  EXPECT_THAT(std::string(status.message()), Not(HasSubstr("allow the store more bytes")));
}

TEST_F(FewDescriptorsTest, AStoreOfManyFilesIsWrittenReadSyncedAndTrimmed) {
  LimitTo(64);
  {
    auto store = Open(ManyFiles());
    ASSERT_TRUE(store);
    const auto tensor = store->AddTensor({"w", "{}", kPages}, false);
    for (uint64_t page = 0; page < kPages; ++page)
      ASSERT_TRUE(WritePage(*store, io_, *tensor, page, 1).ok());
    ASSERT_GT(NumSegmentFiles(), 128u);
    EXPECT_LE(io_.num_files(), 32u) << "half of the limit";
    ASSERT_TRUE(store->Commit("one").ok());
  }
  auto store = Open(ManyFiles());
  ASSERT_TRUE(store);
  EXPECT_EQ(io_.num_files(), 0u) << "opening a store opens none of its segment files";
  const TensorIndex tensor = **store->FindTensor("w");
  for (uint64_t page = 0; page < kPages; ++page) EXPECT_TRUE(PageIs(*store, io_, tensor, page, 1));
  for (uint64_t page = 0; page < kPages; page += 2) store->Forget(tensor, page);
  ASSERT_TRUE(store->Commit("two").ok());
  const auto given_back = store->Trim();
  ASSERT_TRUE(given_back.ok()) << given_back.status();
  EXPECT_GT(*given_back, 0u);
  for (uint64_t page = 1; page < kPages; page += 2)
    EXPECT_TRUE(PageIs(*store, io_, tensor, page, 1));
}

// A file that is held is not closed for others. It can be closed for them once it is released.
TEST_F(FewDescriptorsTest, AFileInUseStaysOpen) {
  LimitTo(64);
  auto store = Open(ManyFiles());
  ASSERT_TRUE(store);
  std::vector<Extent> extents;
  std::vector<FileUse> uses;
  absl::Status refused;
  while (refused.ok()) {
    ASSERT_LT(extents.size(), 64u);
    extents.push_back(*store->Allocate(kTestPageBytes));
    const auto file = store->File(extents.back());
    refused = file.status();
    if (file.ok()) uses.push_back(*file);
  }
  EXPECT_EQ(uses.size(), 32u);
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("a process may have 64 files open"));
  EXPECT_THAT(std::string(refused.message()), HasSubstr("ulimit -n"));
  for (size_t i = 0; i < uses.size(); ++i)
    EXPECT_EQ(*uses[i], **store->File(extents[i])) << "file " << i;
  uses[7].reset();
  const auto last = store->File(extents.back());
  EXPECT_TRUE(last.ok()) << last.status();
  EXPECT_FALSE(store->File(extents[7]).ok()) << "it made room, and has none now";
}

// Runs one operation over more files than may be open.
TEST_F(FewDescriptorsTest, AnOperationOverMoreFilesThanMayBeOpenWaitsForItsOwnRequests) {
  LimitTo(64);
  for (const IoKind kind : {IoKind::kPosix, IoKind::kUring}) {
    if (!CanRun(kind)) continue;
    SCOPED_TRACE(kind == IoKind::kUring ? "uring" : "posix");
    StoreOptions options = ManyFiles();
    options.folders = {folder_ / (kind == IoKind::kUring ? "uring" : "posix")};
    auto engine = MakeIoEngine(kind, {}, folder_.path());
    ASSERT_TRUE(engine.ok()) << engine.status();
    auto store = Store::Open(options, engine->get());
    ASSERT_TRUE(store.ok()) << store.status();
    const auto tensor = (*store)->AddTensor({"w", "{}", kPages}, false);
    const uint64_t bytes = kPages * kTestPageBytes;
    const AlignedBuffer memory(bytes);
    const auto transfer = [&](IoOp op) {
      PageIo pages(store->get(), engine->get());
      if (op == IoOp::kRead) pages.Read(1, *tensor, 0, bytes, memory.data());
      if (op == IoOp::kWrite) pages.Write(1, *tensor, 0, bytes, memory.data());
      std::vector<PageIo::Result> results;
      while (results.empty()) pages.Reap(absl::InfiniteDuration(), &results);
      return results[0].status;
    };
    for (uint64_t i = 0; i < bytes; i += 4096) memory.data()[i] = static_cast<std::byte>(i / 4096);
    absl::Status status = transfer(IoOp::kWrite);
    ASSERT_TRUE(status.ok()) << status;
    status = (*store)->Commit("one");
    ASSERT_TRUE(status.ok()) << status;
    std::memset(memory.data(), 0, bytes);
    status = transfer(IoOp::kRead);
    ASSERT_TRUE(status.ok()) << status;
    for (uint64_t i = 0; i < bytes; i += 4096)
      ASSERT_EQ(memory.data()[i], static_cast<std::byte>(i / 4096)) << "offset " << i;
  }
}

// Tries limits from no descriptor to enough. Each error says what to do, and none does harm.
TEST_F(FewDescriptorsTest, TooFewForAnyStoreIsAnErrorThatNamesTheLimit) {
  {
    auto store = Open(Options());
    ASSERT_TRUE(store);
    const auto tensor = store->AddTensor({"w", "{}", 1}, false);
    ASSERT_TRUE(WritePage(*store, io_, *tensor, 0, 1).ok());
    ASSERT_TRUE(store->Commit("one").ok());
  }
  const auto use = [&]() -> absl::Status {
    SPILLWAY_ASSIGN_OR_RETURN(const auto store, Store::Open(Options(), &io_));
    SPILLWAY_ASSIGN_OR_RETURN(const auto tensor, store->FindTensor("w"));
    SPILLWAY_RETURN_IF_ERROR(WritePage(*store, io_, *tensor, 0, 1));
    return store->Commit("one");
  };
  int refusals = 0;
  const rlim_t open = NumOpen();
  for (rlim_t more = 0;; ++more) {
    ASSERT_LT(more, 32u);
    LimitTo(open + more);
    const absl::Status status = use();
    if (status.ok()) break;
    ++refusals;
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << more << " more: " << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("ulimit -n"));
  }
  EXPECT_GT(refusals, 3);
  auto store = Open(Options());
  ASSERT_TRUE(store);
  EXPECT_TRUE(PageIs(*store, io_, **store->FindTensor("w"), 0, 1));
}

TEST_F(StoreDescriptorsTest, AreNeverThoseOfTheStandardStreams) {
  const pid_t child = ::fork();
  ASSERT_GE(child, 0);
  if (child == 0) ::_exit(InChild());
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  EXPECT_EQ(WEXITSTATUS(status), 0);
  auto store = Open(Options());
  ASSERT_TRUE(store);
  EXPECT_EQ(store->UserState(), "one");
}

}  // namespace
}  // namespace spillway::io
