// SPDX-License-Identifier: Apache-2.0
//
// Kills a process at each of its file system calls in turn, while it makes a store and while it
// commits, and makes calls fail one by one. Reopening must give exactly the last reported commit,
// or the complete commit that was in progress.

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "io/store/store.h"
#include "io/store/store_check.h"
#include "io/store/store_view.h"
#include "tests/exhaustive.h"
#include "tests/io/store/store_test_util.h"
#include "tests/io/store/syscall_hook.h"

namespace spillway::io {
namespace {

constexpr uint64_t kPages = 6;
constexpr uint64_t kCommits = 4;

StoreOptions Options(const TempFolder& folder) {
  StoreOptions options;
  options.folders = {folder / "a", folder / "b"};
  options.page_bytes = kTestPageBytes;
  options.segment_bytes = 4 * kTestPageBytes;  // so that commits also make files
  return options;
}

// In commit number n, page p (from 0) has version n if p + 1 divides n, else the version it had;
// commit 1 writes every page. Page 5 is forgotten in commit 3. The tensor "w<n>" exists from commit
// n on.
uint64_t VersionIn(uint64_t commit, uint64_t page) { return commit / (page + 1) * (page + 1); }
bool IsForgotten(uint64_t commit, uint64_t page) { return page == 5 && commit == 3; }

absl::Status ApplyAndCommit(Store& store, const NamingIoEngine& io, uint64_t commit) {
  std::optional<TensorIndex> tensor = *store.FindTensor("w");
  if (!tensor) tensor = *store.AddTensor({"w", "{}", kPages}, false);
  const std::string name = absl::StrCat("w", commit);
  if (!store.FindTensor(name)->has_value()) (void)store.AddTensor({name, "{}", 1}, false);
  for (uint64_t page = 0; page < kPages; ++page) {
    if (IsForgotten(commit, page)) store.Forget(*tensor, page);
    if (commit % (page + 1) != 0 && commit != 1) continue;
    // Writes each page twice, so that the first copy's extent is free again before the commit.
    for (uint64_t version : {commit + 100, std::max(VersionIn(commit, page), uint64_t{1})}) {
      const absl::Status status = WritePage(store, io, *tensor, page, version);
      if (!status.ok()) return status;
    }
  }
  return store.Commit(std::to_string(commit));
}

// Expects everything as commit number `commit` left it; 0: never committed.
void ExpectCommit(Store& store, const NamingIoEngine& io, uint64_t commit) {
  if (commit == 0) {
    EXPECT_EQ(store.UserState(), std::nullopt);
    EXPECT_EQ(*store.FindTensor("w"), std::nullopt);
    EXPECT_EQ(store.used_bytes(), 0u);
    return;
  }
  EXPECT_EQ(store.UserState(), std::to_string(commit));
  const std::optional<TensorIndex> tensor = *store.FindTensor("w");
  ASSERT_TRUE(tensor);
  for (uint64_t number = 1; number <= commit + 1; ++number)
    EXPECT_EQ(store.FindTensor(absl::StrCat("w", number))->has_value(), number <= commit) << number;
  uint64_t pages = 0;
  for (uint64_t page = 0; page < kPages; ++page) {
    if (commit >= 3 && page == 5) {
      EXPECT_EQ(*store.FindPage(*tensor, page), std::nullopt);
      continue;
    }
    EXPECT_TRUE(PageIs(store, io, *tensor, page, std::max(VersionIn(commit, page), uint64_t{1})));
    ++pages;
  }
  EXPECT_EQ(store.used_bytes(), pages * kTestPageBytes);
}

// Runs the commits from `first` to `last` in a child that dies at its call number `at`. Returns the
// last commit that the child reported. `*finished` is set to whether it did not die.
uint64_t RunAndKill(const TempFolder& folder, uint64_t first, uint64_t last, hook::Deed deed,
                    int at, bool* finished) {
  int pipe_fds[2];
  EXPECT_EQ(::pipe(pipe_fds), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto report = [&](char commit) { ::syscall(SYS_write, pipe_fds[1], &commit, 1); };
    hook::Arm(deed, at);
    NamingIoEngine io;
    auto store = Store::Open(Options(folder), &io);
    if (!store.ok()) ::_exit(1);
    for (uint64_t commit = first; commit <= last; ++commit) {
      if (!ApplyAndCommit(**store, io, commit).ok()) ::_exit(1);
      report(static_cast<char>(commit));
    }
    store->reset();
    ::_exit(0);
  }
  ::close(pipe_fds[1]);
  char reported = static_cast<char>(first - 1);
  for (char next; ::read(pipe_fds[0], &next, 1) == 1;) reported = next;
  ::close(pipe_fds[0]);
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  *finished = WIFEXITED(status);
  EXPECT_TRUE(*finished ? WEXITSTATUS(status) == 0 : WTERMSIG(status) == SIGKILL)
      << "the child failed instead of dying: " << status;
  return static_cast<uint64_t>(reported);
}

// Reopens the store after a crash. Checks that the commit found is complete and not older than
// `reported`, and that another commit succeeds.
void ExpectReopens(const TempFolder& folder, uint64_t reported) {
  NamingIoEngine io;
  auto store = Store::Open(Options(folder), &io);
  ASSERT_TRUE(store.ok()) << store.status();
  const uint64_t found = (*store)->UserState() ? std::stoull(*(*store)->UserState()) : 0;
  ASSERT_GE(found, reported) << "a commit that was reported is lost";
  ASSERT_LE(found, reported + 1);
  ExpectCommit(**store, io, found);
  if (found == kCommits) return;
  const absl::Status status = ApplyAndCommit(**store, io, found + 1);
  ASSERT_TRUE(status.ok()) << status;
  ExpectCommit(**store, io, found + 1);
}

void CopyStore(const TempFolder& from, const TempFolder& to) {
  for (const char* name : {"a", "b"}) {
    std::filesystem::remove_all(to / name);
    std::filesystem::copy(from / name, to / name);
  }
}

class StoreCrashTest : public ::testing::TestWithParam<hook::Deed> {};

TEST_P(StoreCrashTest, KilledAnywhereWhileMakingAStore) {
  bool finished = false;
  int at = 1 + SampleBegin();
  for (; !finished; at += static_cast<int>(SampleShare())) {
    SCOPED_TRACE(at);
    TempFolder folder(FastPlace());
    RunAndKill(folder, 1, 0, GetParam(), at, &finished);
    ExpectReopens(folder, 0);
    if (HasFatalFailure()) return;
    for (const char* name : {"a", "b"}) {
      for (const std::string& file : FilesIn(folder / name))
        EXPECT_FALSE(file.ends_with(".new")) << file;
    }
  }
  EXPECT_GT(at, 20);
  std::cout << at - 2 << " points\n";
}

TEST_P(StoreCrashTest, KilledAnywhereWhileAnEmptyStoreIsRemoved) {
  bool finished = false;
  int at = 1;
  for (; !finished; ++at) {
    SCOPED_TRACE(at);
    TempFolder folder(FastPlace());
    const pid_t child = ::fork();
    if (child == 0) {
      NamingIoEngine io;
      StoreOptions options = Options(folder);
      options.remove_if_empty = true;
      auto store = Store::Open(options, &io);
      if (!store.ok()) ::_exit(1);
      const absl::StatusOr<TensorIndex> tensor = (*store)->AddTensor({"w", "{}", kPages}, false);
      for (uint64_t page = 0; page < kPages; ++page)  // so that both folders have segments
        if (!WritePage(**store, io, *tensor, page, 1).ok()) ::_exit(1);
      hook::Arm(GetParam(), at);
      store->reset();
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    finished = WIFEXITED(status);
    ASSERT_TRUE(finished ? WEXITSTATUS(status) == 0 : WTERMSIG(status) == SIGKILL) << status;
    if (finished) {
      EXPECT_FALSE(std::filesystem::exists(folder / "a"));
      EXPECT_FALSE(std::filesystem::exists(folder / "b"));
    }
    ExpectReopens(folder, 0);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(at, 10);
  std::cout << at - 2 << " points\n";
}

TEST_P(StoreCrashTest, KilledAnywhereWhileCommitting) {
  TempFolder base(FastPlace());
  bool finished = false;
  RunAndKill(base, 1, 1, hook::Deed::kNothing, 0, &finished);
  ASSERT_TRUE(finished);
  TempFolder folder(FastPlace());
  finished = false;
  int at = 1 + SampleBegin();
  for (; !finished; at += static_cast<int>(SampleShare())) {
    SCOPED_TRACE(at);
    CopyStore(base, folder);
    const uint64_t reported = RunAndKill(folder, 2, kCommits, GetParam(), at, &finished);
    ExpectReopens(folder, reported);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(at, 50);
  std::cout << at - 2 << " points\n";
}

INSTANTIATE_TEST_SUITE_P(All, StoreCrashTest,
                         ::testing::Values(hook::Deed::kKill, hook::Deed::kKillHalfway),
                         [](const auto& param_info) {
                           return param_info.param == hook::Deed::kKill ? "Before" : "Halfway";
                         });

TEST(StoreCrash, AKilledScratchStoreIsRemovedByTheNextOne) {
  TempFolder folder(FastPlace());
  StoreOptions options = Options(folder);
  options.scratch = true;
  const pid_t child = ::fork();
  if (child == 0) {
    NamingIoEngine io;
    auto store = Store::Open(options, &io);
    if (!store.ok() || !ApplyAndCommit(**store, io, 1).ok()) ::_exit(1);
    ::kill(::getpid(), SIGKILL);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status));
  NamingIoEngine io;
  {
    auto store = Store::Open(options, &io);
    ASSERT_TRUE(store.ok()) << store.status();
    ExpectCommit(**store, io, 0);
  }
  EXPECT_TRUE(FilesIn(folder / "a").empty());
  EXPECT_TRUE(FilesIn(folder / "b").empty());
}

// Makes one call fail with ENOSPC or EIO. What the store then reports must be true afterwards, also
// after a crash.
class StoreFailureTest : public ::testing::TestWithParam<int> {};

TEST_P(StoreFailureTest, AnyFailedCallLeavesAWholeCommit) {
  TempFolder base(FastPlace());
  bool finished = false;
  RunAndKill(base, 1, 1, hook::Deed::kNothing, 0, &finished);
  ASSERT_TRUE(finished);
  TempFolder folder(FastPlace());
  bool met = true;
  int at = 1 + SampleBegin();
  for (; met; at += static_cast<int>(SampleShare())) {
    SCOPED_TRACE(at);
    CopyStore(base, folder);
    const pid_t child = ::fork();
    if (child == 0) {
      NamingIoEngine io;
      auto store = Store::Open(Options(folder), &io);
      if (!store.ok()) ::_exit(100);
      hook::Arm(hook::Deed::kFail, at, GetParam());
      const absl::Status failed = ApplyAndCommit(**store, io, 2);
      const bool was_met = hook::plan.failed;
      if (!failed.ok() && !was_met) ::_exit(101);
      if (!failed.ok() && (*store)->UserState() != "1") ::_exit(102);
      // Continues to write, as a run would. This must not overwrite anything that a commit may
      // name.
      if (!failed.ok()) {
        const TensorIndex tensor = **(*store)->FindTensor("w");
        for (uint64_t version = 50; version < 60; ++version) {
          for (uint64_t page = 0; page < kPages; ++page)
            (void)WritePage(**store, io, tensor, page, version);
        }
      }
      // Exits without a destructor, as if killed here.
      ::_exit(!was_met ? 10 : failed.ok() ? 11 : 12);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFEXITED(status));
    const int code = WEXITSTATUS(status);
    ASSERT_TRUE(code == 10 || code == 11 || code == 12) << code;
    met = code != 10;
    ExpectReopens(folder, code == 12 ? 1 : 2);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(at, 10);
}

TEST_P(StoreFailureTest, ACommitThatFailedInTheCatalogCanBeRepeated) {
  bool met = true;
  int at = 1 + SampleBegin();
  for (; met; at += static_cast<int>(SampleShare())) {
    SCOPED_TRACE(at);
    TempFolder folder(FastPlace());
    NamingIoEngine io;
    auto store = Store::Open(Options(folder), &io);
    ASSERT_TRUE(store.ok()) << store.status();
    ASSERT_TRUE(ApplyAndCommit(**store, io, 1).ok());
    hook::Arm(hook::Deed::kFail, at, GetParam(), SYS_pwrite64);
    absl::Status status = ApplyAndCommit(**store, io, 2);
    hook::Disarm();
    met = hook::plan.failed;
    if (!status.ok()) status = ApplyAndCommit(**store, io, 2);
    ASSERT_TRUE(status.ok()) << status;
    ExpectCommit(**store, io, 2);
    store->reset();
    ExpectReopens(folder, 2);
    if (HasFatalFailure()) return;
  }
  EXPECT_GT(at, 8);
}

INSTANTIATE_TEST_SUITE_P(Errors, StoreFailureTest, ::testing::Values(ENOSPC, EIO),
                         [](const auto& param_info) {
                           return param_info.param == ENOSPC ? "ENOSPC" : "EIO";
                         });

TEST(StoreFailure, AfterAFailedDataSyncNothingIsCommitted) {
  TempFolder folder(FastPlace());
  NamingIoEngine io;
  auto store = Store::Open(Options(folder), &io);
  ASSERT_TRUE(store.ok()) << store.status();
  ASSERT_TRUE(ApplyAndCommit(**store, io, 1).ok());
  hook::Arm(hook::Deed::kFail, 1, EIO, SYS_fdatasync);
  const absl::Status status = ApplyAndCommit(**store, io, 2);
  hook::Disarm();
  EXPECT_NE(status.message().find("spillway-segment"), absl::string_view::npos) << status;
  EXPECT_EQ((*store)->Commit("again"), status) << "the kernel reports a lost write once";
  store->reset();
  ExpectReopens(folder, 1);
}

TEST(StoreFailure, AfterAFailedFolderSyncNothingIsCommitted) {
  TempFolder folder(FastPlace());
  NamingIoEngine io;
  auto store = Store::Open(Options(folder), &io);
  ASSERT_TRUE(store.ok()) << store.status();
  hook::Arm(hook::Deed::kFail, 1, EIO, SYS_fsync);  // the first commit makes files
  const absl::Status status = ApplyAndCommit(**store, io, 1);
  hook::Disarm();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_NE(status.message().find("sync " + (folder / "a")), absl::string_view::npos) << status;
  EXPECT_EQ((*store)->Commit("again"), status) << "the kernel reports a lost write once";
  store->reset();
  ExpectReopens(folder, 0);
}

// Limits the descriptors of the process, and restores the limit at the end.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(rlim_t descriptors) {
    EXPECT_EQ(::getrlimit(RLIMIT_NOFILE, &before_), 0);
    const rlimit limit = {.rlim_cur = descriptors, .rlim_max = before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &limit), 0);
  }
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;
  ~DescriptorLimit() { EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before_), 0); }

 private:
  rlimit before_;
};

// A commit over more files than may be open closes some of them, and opens them again to sync them.
// A file that is written through the page cache is synced before it is closed. If that sync fails,
// the next one succeeds, and proves nothing.
TEST(StoreFailure, AFailedSyncOfAFileThatMakesRoomForAnotherFailsTheCommit) {
  const DescriptorLimit limit(64);
  TempFolder folder(FastPlace());
  StoreOptions options = Options(folder);
  options.folders = {folder / "a"};
  options.segment_bytes = kTestPageBytes;  // each page has its own file
  NamingIoEngine io;
  hook::refuses_direct = true;
  {
    auto store = Store::Open(options, &io);
    ASSERT_TRUE(store.ok()) << store.status();
    ASSERT_TRUE((*store)->Commit("one").ok());
    const TensorIndex tensor = *(*store)->AddTensor({"w", "{}", 40}, false);
    for (uint64_t page = 0; page < 40; ++page)
      ASSERT_TRUE(WritePage(**store, io, tensor, page, 1).ok());
    ASSERT_LT(io.num_files(), 40u);
    hook::Arm(hook::Deed::kFail, 1, EIO, SYS_fdatasync);
    const absl::Status status = (*store)->Commit("two");
    hook::Disarm();
    EXPECT_TRUE(hook::plan.failed);
    EXPECT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_NE(status.message().find("nothing more can be committed"), absl::string_view::npos)
        << status;
    EXPECT_EQ((*store)->Commit("again"), status);
  }
  auto store = Store::Open(options, &io);
  hook::refuses_direct = false;
  ASSERT_TRUE(store.ok()) << store.status();
  EXPECT_EQ((*store)->UserState(), "one");
}

// Leaves a store whose process ended without closing it, so that the last commit is in the log.
void LeaveALog(const TempFolder& folder) {
  const pid_t child = ::fork();
  if (child == 0) {
    NamingIoEngine io;
    auto store = Store::Open(Options(folder), &io);
    ::_exit(store.ok() && ApplyAndCommit(**store, io, 1).ok() ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
}

// The log may never have been synced, or its sync may have failed. So it is written again and
// synced before anything else is written.
TEST(StoreCrash, OpeningFirstMakesTheLogDurable) {
  TempFolder folder(FastPlace());
  LeaveALog(folder);
  NamingIoEngine io;
  std::vector<std::pair<long, std::string>> log;
  hook::Arm(hook::Deed::kNothing, 0);
  hook::plan.log = &log;
  auto store = Store::Open(Options(folder), &io);
  hook::Disarm();
  ASSERT_TRUE(store.ok()) << store.status();
  std::erase_if(log, [](const auto& call) { return call.second.ends_with("spillway-lock"); });
  const std::string wal = folder / "a/spillway-catalog.sqlite-wal";
  ASSERT_GE(log.size(), 3u);
  EXPECT_EQ(log[0], std::pair(long{SYS_pwrite64}, wal));
  EXPECT_EQ(log[1], std::pair(long{SYS_fdatasync}, wal));
  EXPECT_EQ(log[2], std::pair(long{SYS_fsync}, folder / "a"));
}

TEST(StoreCrash, AStoreWhoseLogCannotBeSyncedIsNotOpened) {
  TempFolder folder(FastPlace());
  LeaveALog(folder);
  NamingIoEngine io;
  hook::Arm(hook::Deed::kFail, 1, EIO, SYS_fdatasync);
  const absl::Status status = Store::Open(Options(folder), &io).status();
  hook::Disarm();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_NE(status.message().find("-wal"), absl::string_view::npos) << status;
  ExpectReopens(folder, 1);
}

// SQLite takes a damaged end of its log for one that was never written. If it then moved the rest
// into the file, and deleted the log, the commits in that end would be lost for good.
TEST(StoreCrash, ARefusedOpeningLeavesTheLogAsItIs) {
  TempFolder folder(FastPlace());
  LeaveALog(folder);
  const std::string log = folder / "a/spillway-catalog.sqlite-wal";
  const auto flip_last_byte = [&] {
    std::fstream file(log, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(-1, std::ios::end);
    const int last = file.get();
    file.seekp(-1, std::ios::end);
    file.put(static_cast<char>(last ^ 1));
    ASSERT_TRUE(file.good());
  };
  flip_last_byte();
  NamingIoEngine io;
  for (int time = 0; time < 2; ++time) {
    const absl::Status status = Store::Open(Options(folder), &io).status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    ASSERT_TRUE(std::filesystem::exists(log));
  }
  flip_last_byte();
  ExpectReopens(folder, 1);
  EXPECT_FALSE(std::filesystem::exists(log)) << "a store that is closed needs no log";
}

TEST(StoreCrash, ARepairCutsNoFileBeforeTheLogIsDurable) {
  TempFolder folder(FastPlace());
  LeaveALog(folder);
  const std::string segment = folder / "a/spillway-segment-000000";
  const auto size = std::filesystem::file_size(segment);
  std::filesystem::resize_file(segment, size + 8192);
  const auto view = StoreView::Open(Options(folder).folders, StoreView::Wanted::kAlone);
  ASSERT_TRUE(view.ok()) << view.status();
  const std::vector<Orphan> orphans = {
      {.kind = Orphan::Kind::kTail, .path = segment, .offset = size, .size_bytes = 8192}};
  hook::Arm(hook::Deed::kFail, 1, EIO, SYS_fdatasync);
  const absl::Status status = ReclaimOrphans(view->get(), orphans);
  hook::Disarm();
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(std::filesystem::file_size(segment), size + 8192);
}

// A killed process loses nothing that the kernel holds, but a power loss does. So this test checks
// the order of syncs.
TEST(StoreCommit, DataAndFoldersAreSyncedBeforeTheCatalogIsWritten) {
  TempFolder folder(FastPlace());
  NamingIoEngine io;
  auto store = Store::Open(Options(folder), &io);
  ASSERT_TRUE(store.ok()) << store.status();
  std::vector<std::pair<long, std::string>> log;
  hook::Arm(hook::Deed::kNothing, 0);
  hook::plan.log = &log;
  ASSERT_TRUE(ApplyAndCommit(**store, io, 1).ok());
  hook::Disarm();

  std::vector<std::string> unsynced;
  std::vector<std::string> folders_to_sync = {folder / "a", folder / "b"};
  bool wrote_catalog = false;
  bool synced_catalog = false;
  int witnesses = 0;
  for (const auto& [call, path] : log) {
    const bool is_write = call == SYS_pwrite64 || call == SYS_fallocate;
    const bool is_sync = call == SYS_fdatasync || call == SYS_fsync;
    const bool is_catalog = path.find("catalog") != std::string::npos;
    if (is_write && path.ends_with("spillway-commit")) {
      EXPECT_TRUE(synced_catalog) << "the witness must never be newer than the catalog";
      ++witnesses;
      continue;
    }
    if (is_write && !is_catalog) {
      EXPECT_FALSE(wrote_catalog) << path;
      unsynced.push_back(path);
    }
    if (is_sync) std::erase(unsynced, path);
    if (is_sync) std::erase(folders_to_sync, path);
    if (is_write && is_catalog) {
      EXPECT_TRUE(unsynced.empty())
          << unsynced.front() << " is not synced when the catalog is written";
      EXPECT_TRUE(folders_to_sync.empty()) << folders_to_sync.front();
      wrote_catalog = true;
      synced_catalog = false;
    }
    if (is_sync && is_catalog) synced_catalog = true;
  }
  EXPECT_TRUE(wrote_catalog);
  EXPECT_TRUE(synced_catalog) << "the transaction is not durable when Commit returns";
  EXPECT_EQ(witnesses, 2) << "one in each folder";
}

// On tmpfs, with some kernels, a signal ends a fallocate that takes long, and nothing of it is
// left.
TEST(StoreGrowth, GetsAheadBetweenSignals) {
  constexpr uint32_t kBytes = 24 << 20;
  TempFolder folder(FastPlace());
  NamingIoEngine io;
  auto store = Store::Open({.folders = {folder / "a"}, .scratch = true}, &io);
  ASSERT_TRUE(store.ok()) << store.status();
  hook::most_allocated_bytes = 2 << 20;
  hook::interruptions = 0;
  const absl::StatusOr<Extent> extent = (*store)->Allocate(kBytes);
  hook::most_allocated_bytes = 0;
  ASSERT_TRUE(extent.ok()) << extent.status();
  EXPECT_GE(hook::interruptions, 1);
  EXPECT_LE(hook::interruptions, 10) << "each shortens the next call";
  EXPECT_GE(std::filesystem::file_size((*store)->Path(*extent)), uint64_t{kBytes});
  (*store)->Release(*extent);
}

}  // namespace
}  // namespace spillway::io
