// SPDX-License-Identifier: Apache-2.0
//
// Tests opening a store: who may open it, what opening makes and removes, and the errors for
// folders that are not what they should be.

#include "io/store/store_opening.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "io/store/store_folder.h"
#include "io/store/store_view.h"
#include "tests/io/store/store_test_util.h"

namespace spillway::io {
namespace {

using ::testing::HasSubstr;
using StoreOpeningTest = StoreTest;

TEST_F(StoreOpeningTest, TwoFoldersReopen) {
  MakeStore(TwoFolders());
  auto store = Open(TwoFolders());
  for (uint64_t page = 0; page < 4; ++page)
    EXPECT_TRUE(PageIs(*store, io_, **store->FindTensor("w"), page, 1));
}

TEST_F(StoreOpeningTest, AMovedStoreStillOpens) {
  MakeStore(TwoFolders());
  StoreOptions moved = TwoFolders();
  moved.create = false;
  moved.folders = {folder_ / "elsewhere/one", folder_ / "two"};
  std::filesystem::create_directory(folder_ / "elsewhere");
  std::filesystem::rename(folder_ / "a", moved.folders[0]);
  std::filesystem::rename(folder_ / "b", moved.folders[1]);
  auto store = Open(moved);
  ASSERT_TRUE(store);
  for (uint64_t page = 0; page < 4; ++page)
    EXPECT_TRUE(PageIs(*store, io_, **store->FindTensor("w"), page, 1));
}

TEST_F(StoreOpeningTest, ALinkThatLeadsToNoFolderIsNamed) {
  const std::string link = folder_ / "link";
  std::ofstream(folder_ / "file") << "text";
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"missing", "is a symbolic link to missing, which does not exist"},
      {"file", "is a symbolic link to file, which is not a folder"},
      {"link", "is a symbolic link to link, a link to link"}};
  for (const auto& [target, words] : cases) {
    std::filesystem::create_symlink(target, link);
    for (const std::string& path : {link, link + "/", link + "/a", link + "/a/b"}) {
      for (const bool create : {true, false}) {
        StoreOptions options = TwoFolders();
        options.folders = {path};
        options.create = create;
        const absl::Status status = OpenError(options);
        EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
        EXPECT_THAT(std::string(status.message()), HasSubstr(link + " " + words)) << path;
        options.folders = {folder_ / "a", path};  // the second one
        const std::string message(OpenError(options).message());
        EXPECT_THAT(message, HasSubstr(create ? words : folder_ / "a"));
        EXPECT_FALSE(std::filesystem::exists(folder_ / "a"));
      }
    }
    std::filesystem::remove(link);
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ / "missing"));
}

TEST_F(StoreOpeningTest, AStoreIsReachedThroughLinks) {
  std::filesystem::create_directory(folder_ / "disk");
  std::filesystem::create_directory_symlink("disk", folder_ / "link");
  StoreOptions options = TwoFolders();
  options.folders = {folder_ / "link/store"};
  MakeStore(options);
  options.folders = {folder_ / "disk/store"};
  EXPECT_TRUE(Open(options));
}

TEST_F(StoreOpeningTest, FoldersInTheWrongOrderAreRefusedWithTheRightOne) {
  MakeStore(TwoFolders());
  StoreOptions options = TwoFolders();
  std::swap(options.folders[0], options.folders[1]);
  const absl::Status status = OpenError(options);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr((folder_ / "a") + "," + (folder_ / "b")));
}

TEST_F(StoreOpeningTest, AnotherNumberOfFoldersIsRefused) {
  MakeStore(TwoFolders());
  for (const auto& folders : std::vector<std::vector<std::string>>{
           {folder_ / "a"}, {folder_ / "b"}, {folder_ / "a", folder_ / "b", folder_ / "c"}}) {
    StoreOptions options = TwoFolders();
    options.folders = folders;
    EXPECT_TRUE(absl::IsInvalidArgument(OpenError(options))) << OpenError(options);
    EXPECT_THAT(std::string(OpenError(options).message()), HasSubstr("2 folders"));
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ / "c")) << "what a refused open made is gone again";
}

TEST_F(StoreOpeningTest, FoldersOfTwoStoresAreRefused) {
  MakeStore(TwoFolders());
  StoreOptions other = TwoFolders();
  other.folders = {folder_ / "c", folder_ / "d"};
  MakeStore(other);
  other.folders = {folder_ / "a", folder_ / "d"};
  EXPECT_TRUE(absl::IsInvalidArgument(OpenError(other))) << OpenError(other);
  other.folders = {folder_ / "a", folder_ / "a/../a"};
  EXPECT_THAT(std::string(OpenError(other).message()), HasSubstr("same folder"));
}

TEST_F(StoreOpeningTest, TheSecondFolderOfAnotherStoreIsNotTakenOver) {
  MakeStore(TwoFolders());
  StoreOptions options = TwoFolders();
  options.folders = {folder_ / "not-mounted", folder_ / "b"};
  const absl::Status status = OpenError(options);
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("not mounted"));
  EXPECT_TRUE(Open(TwoFolders()));
}

// A store that was never finished in the first folder says nothing about the second one.
TEST_F(StoreOpeningTest, AnotherStoreBesideAHalfMadeOneIsNotRemoved) {
  Open(Options());
  std::filesystem::remove(folder_ / "store/spillway-store");
  StoreOptions one = Options();
  one.folders = {folder_ / "one"};
  ASSERT_TRUE(Open(one)->Commit("one").ok());
  ASSERT_TRUE(Open(TwoFolders())->Commit("two").ok());

  StoreOptions options = Options();
  const auto expect_refused = [&](const std::string& second, const std::string& other_content) {
    SCOPED_TRACE(second + ", " + other_content);
    options.folders = {folder_ / "store", folder_ / second};
    const std::vector<std::string> before[] = {FilesIn(options.folders[0]),
                                               FilesIn(options.folders[1])};
    for (const bool create : {true, false}) {
      options.create = create;
      const absl::Status status = OpenError(options);
      EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
      EXPECT_THAT(std::string(status.message()), HasSubstr(folder_ / second + " belongs to"));
    }
    EXPECT_EQ(FilesIn(options.folders[0]), before[0]);
    EXPECT_EQ(FilesIn(options.folders[1]), before[1]);
  };
  expect_refused("one", "a whole store");
  expect_refused("b", "the second folder of a store");
  std::filesystem::resize_file(folder_ / "store/spillway-catalog.sqlite", 0);
  expect_refused("b", "whose store nobody can compare");
  std::filesystem::remove(folder_ / "one/spillway-store");
  expect_refused("one", "a catalog alone");
  EXPECT_EQ(Open(TwoFolders())->UserState(), "two");

  // If nothing is in the second folder, or what belongs to the half-made store, it starts over.
  options.create = true;
  options.folders = {folder_ / "store", folder_ / "new"};
  EXPECT_TRUE(Open(options));
  std::filesystem::remove(folder_ / "store/spillway-store");
  EXPECT_TRUE(Open(options));
}

TEST_F(StoreOpeningTest, AStoreWithoutItsIdentityIsDamagedWhoeverAsks) {
  MakeStore(Options());
  const StoreFolder folder = *StoreFolder::Open(Options().folders[0], StoreFolder::Mode::kExisting);
  std::filesystem::remove(folder.path() + "/spillway-store");
  StoreOptions options = Options();
  for (const bool create : {false, true}) {
    options.create = create;
    EXPECT_TRUE(absl::IsDataLoss(OpenError(options))) << OpenError(options);
  }
  const absl::Status viewed =
      StoreView::Open(options.folders, StoreView::Wanted::kAnyState).status();
  EXPECT_EQ(viewed.message(), OpenError(options).message());
  // If the catalog is missing too, the segments may belong to another folder.
  std::filesystem::remove(folder.CatalogPath());
  for (const bool create : {false, true}) {
    options.create = create;
    EXPECT_TRUE(absl::IsFailedPrecondition(OpenError(options))) << OpenError(options);
  }
}

TEST_F(StoreOpeningTest, APageSizeThatDiffersIsRefusedAndNoneMeansTheStores) {
  MakeStore(Options());
  StoreOptions options = Options();
  options.page_bytes = 2 * kTestPageBytes;
  const absl::Status status = OpenError(options);
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("65536"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("131072"));
  options.page_bytes = 0;
  EXPECT_EQ(Open(options)->page_bytes(), kTestPageBytes);
}

TEST_F(StoreOpeningTest, AStoreWithoutACommitTakesAnotherPageSize) {
  Open(Options());
  StoreOptions options = Options();
  options.page_bytes = 2 * kTestPageBytes;
  EXPECT_EQ(Open(options)->page_bytes(), 2 * kTestPageBytes);
  options.page_bytes = 0;
  EXPECT_EQ(Open(options)->page_bytes(), 2 * kTestPageBytes);
}

TEST_F(StoreOpeningTest, OptionsThatCannotBeAreRefusedBeforeAnythingIsMade) {
  std::vector<StoreOptions> impossible(7, Options());
  impossible[0].page_bytes = 1000;
  impossible[1].page_bytes = uint64_t{1} << 31;
  impossible[2].segment_bytes = kTestPageBytes / 2;
  impossible[3].folders = {};
  impossible[4].folders = {""};
  impossible[5].segment_bytes = 4 * kTestPageBytes + 1;
  impossible[6].page_bytes = impossible[6].segment_bytes = 0;
  for (const StoreOptions& options : impossible) {
    EXPECT_TRUE(absl::IsInvalidArgument(OpenError(options))) << OpenError(options);
  }
  EXPECT_TRUE(FilesIn(folder_.path()).empty());
}

TEST_F(StoreOpeningTest, OpeningWhatIsNotThereIsNotFoundAndMakesNothing) {
  StoreOptions options = Options();
  options.create = false;
  EXPECT_TRUE(absl::IsNotFound(OpenError(options))) << OpenError(options);
  EXPECT_TRUE(FilesIn(folder_.path()).empty());
  std::filesystem::create_directory(options.folders[0]);
  EXPECT_TRUE(absl::IsNotFound(OpenError(options))) << OpenError(options);
  EXPECT_TRUE(FilesIn(options.folders[0]).empty());
}

TEST_F(StoreOpeningTest, AnExistingStoreIsRefusedWhereNoneMayBe) {
  StoreOptions options = Options();
  options.must_not_exist = true;
  MakeStore(options);
  const std::vector<std::string> files = FilesIn(options.folders[0]);
  EXPECT_TRUE(absl::IsFailedPrecondition(OpenError(options))) << OpenError(options);
  EXPECT_THAT(std::string(OpenError(options).message()), HasSubstr("OpenMode::kOpenOrCreate"));
  options.must_not_exist = false;
  options.scratch = true;
  EXPECT_TRUE(absl::IsFailedPrecondition(OpenError(options))) << OpenError(options);
  EXPECT_THAT(std::string(OpenError(options).message()), HasSubstr("choose another"));
  EXPECT_EQ(FilesIn(options.folders[0]), files);
}

TEST_F(StoreOpeningTest, ASecondOpenerIsRefusedAndToldWhoHoldsIt) {
  auto store = Open(TwoFolders());
  const absl::Status own = OpenError(TwoFolders());
  EXPECT_TRUE(absl::IsFailedPrecondition(own)) << own;
  EXPECT_THAT(std::string(own.message()), HasSubstr(std::to_string(::getpid())));
  EXPECT_THAT(std::string(own.message()), HasSubstr("close its engine first"));
  const std::string holder = "process (" + std::to_string(::getpid()) + ")";
  const pid_t child = ::fork();
  if (child == 0) {
    NamingIoEngine io;
    const absl::Status status = Store::Open(TwoFolders(), &io).status();
    const bool right = absl::IsFailedPrecondition(status) &&
                       status.message().find(" process " + std::to_string(::getppid())) !=
                           absl::string_view::npos &&
                       status.message().find("wait for it to end") != absl::string_view::npos;
    ::_exit(right ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  store.reset();
  EXPECT_TRUE(Open(TwoFolders()));
}

struct Pipe {
  Pipe() { EXPECT_EQ(::pipe(fds), 0); }
  ~Pipe() {
    CloseEnd(0);
    CloseEnd(1);
  }
  void CloseEnd(int end) {
    if (fds[end] >= 0) ::close(std::exchange(fds[end], -1));
  }
  // Waits until there is a byte. Returns false if nobody can write one any more.
  bool Wait() {
    CloseEnd(1);
    char byte;
    return ::read(fds[0], &byte, 1) == 1;
  }
  void Tell() { EXPECT_EQ(::write(fds[1], "x", 1), 1); }
  int fds[2] = {-1, -1};
};

TEST_F(StoreOpeningTest, AForkedChildKeepsNoLock) {
  auto store = Open(TwoFolders());
  Pipe end;
  const pid_t child = ::fork();
  if (child == 0) {
    (void)end.Wait();
    ::_exit(0);
  }
  store.reset();
  EXPECT_TRUE(Open(TwoFolders()));
  end.CloseEnd(1);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
}

TEST_F(StoreOpeningTest, AForkedChildKeepsNoLockOfAKilledParent) {
  Pipe ready;
  Pipe end;
  const pid_t parent = ::fork();
  if (parent == 0) {
    NamingIoEngine io;
    const auto store = Store::Open(TwoFolders(), &io);
    if (!store.ok()) ::_exit(1);
    if (::fork() == 0) {
      ready.Tell();
      (void)end.Wait();
      ::_exit(0);
    }
    end.CloseEnd(1);
    while (true) ::pause();
  }
  EXPECT_TRUE(ready.Wait());
  ASSERT_EQ(::kill(parent, SIGKILL), 0);
  ASSERT_EQ(::waitpid(parent, nullptr, 0), parent);
  EXPECT_TRUE(Open(TwoFolders()));
}

TEST_F(StoreOpeningTest, ALockOfAProcessThatHasEndedIsExplained) {
  MakeStore(Options());
  const std::string lock = folder_ / "store/spillway-lock";
  const int fd = ::open(lock.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_EQ(::flock(fd, LOCK_EX), 0);
  const std::string pid = "2147483646\n";  // no process has so high a number
  ASSERT_EQ(::ftruncate(fd, 0), 0);
  ASSERT_EQ(::pwrite(fd, pid.data(), pid.size(), 0), static_cast<ssize_t>(pid.size()));
  const absl::Status status = OpenError(Options());
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("process 2147483646, which is not running"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("a process that it forked"));
  ::close(fd);
}

TEST_F(StoreOpeningTest, AFolderThatIsRemovedBeforeItIsLockedIsNotFound) {
  std::filesystem::create_directory(folder_ / "store");
  auto folder = StoreFolder::Open(folder_ / "store", StoreFolder::Mode::kExisting);
  ASSERT_TRUE(folder.ok()) << folder.status();
  std::filesystem::remove(folder_ / "store");
  const absl::Status status = folder->Lock();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("was removed while it was opened"));
}

TEST_F(StoreOpeningTest, AScratchStoreLeavesNothing) {
  StoreOptions options = TwoFolders();
  options.scratch = true;
  options.folders[0] = folder_ / "deep/er/a";
  {
    auto store = Open(options);
    const TensorIndex tensor = *store->AddTensor({"w", "{}", 4}, false);
    for (uint64_t page = 0; page < 4; ++page)
      ASSERT_TRUE(WritePage(*store, io_, tensor, page, 1).ok());
    ASSERT_TRUE(store->Commit("x").ok());
  }
  EXPECT_TRUE(FilesIn(folder_.path()).empty());
}

TEST_F(StoreOpeningTest, AScratchStoreLeavesWhatItDidNotMake) {
  StoreOptions options = Options();
  options.scratch = true;
  const std::string mine = options.folders[0] + "/notes.txt";
  std::filesystem::create_directory(options.folders[0]);
  std::ofstream(mine) << "mine";
  std::ofstream(options.folders[0] + "/spillway-segment-7.bak") << "mine too";
  std::ofstream(options.folders[0] + "/spillway-segment-7") << "and this";
  {
    auto store = Open(options);
    const TensorIndex tensor = *store->AddTensor({"w", "{}", 1}, false);
    ASSERT_TRUE(WritePage(*store, io_, tensor, 0, 1).ok());
    std::ofstream(options.folders[0] + "/later") << "added while open";
  }
  EXPECT_EQ(FilesIn(options.folders[0]),
            (std::vector<std::string>{"later", "notes.txt", "spillway-segment-7",
                                      "spillway-segment-7.bak"}));
}

TEST_F(StoreOpeningTest, AFolderWithForeignFilesHoldsAStoreBesideThem) {
  std::filesystem::create_directory(folder_ / "store");
  std::ofstream(folder_ / "store/data.bin") << "theirs";
  MakeStore(Options());
  std::string text;
  std::ifstream(folder_ / "store/data.bin") >> text;
  EXPECT_EQ(text, "theirs");
  EXPECT_TRUE(Open(Options()));
}

TEST_F(StoreOpeningTest, AForeignFileWithOurNameIsRefusedAndLeftAlone) {
  std::filesystem::create_directory(folder_ / "store");
  std::ofstream(folder_ / "store/spillway-store") << "a shopping list\n";
  const absl::Status status = OpenError(Options());
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_EQ(FilesIn(folder_ / "store"), std::vector<std::string>{"spillway-store"});
}

TEST_F(StoreOpeningTest, ALockThatAPowerCutMadeZerosIsNoHindrance) {
  MakeStore(Options());
  std::ofstream(folder_ / "store/spillway-lock") << std::string(5, '\0');
  EXPECT_TRUE(Open(Options()));
}

TEST_F(StoreOpeningTest, AForeignLockIsRefusedAndLeftAlone) {
  MakeStore(Options());
  std::ofstream(folder_ / "store/spillway-lock") << "1 loaf";
  EXPECT_TRUE(absl::IsUnavailable(OpenError(Options()))) << OpenError(Options());
  EXPECT_EQ(std::filesystem::file_size(folder_ / "store/spillway-lock"), 6);
}

TEST_F(StoreOpeningTest, AFileInPlaceOfTheFolderIsRefused) {
  std::ofstream(folder_ / "store") << "a file";
  const absl::Status status = OpenError(Options());
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
}

TEST_F(StoreOpeningTest, AHalfMadeStoreStartsOver) {
  MakeStore(Options());
  std::filesystem::remove(folder_ / "store/spillway-catalog.sqlite");
  std::filesystem::remove(folder_ / "store/spillway-segment-000000");
  StoreOptions options = Options();
  options.create = false;
  EXPECT_TRUE(absl::IsNotFound(OpenError(options))) << OpenError(options);
  options = Options();
  options.must_not_exist = true;
  EXPECT_TRUE(absl::IsFailedPrecondition(OpenError(options))) << OpenError(options);
  auto store = Open(Options());
  ASSERT_TRUE(store);
  EXPECT_EQ(store->UserState(), std::nullopt);
  EXPECT_EQ(*store->FindTensor("w"), std::nullopt);
}

TEST_F(StoreOpeningTest, DataWithoutItsCatalogIsNotThrownAway) {
  MakeStore(Options());
  std::filesystem::remove(folder_ / "store/spillway-catalog.sqlite");
  EXPECT_TRUE(absl::IsDataLoss(OpenError(Options()))) << OpenError(Options());
  std::filesystem::remove(folder_ / "store/spillway-store");
  EXPECT_TRUE(absl::IsFailedPrecondition(OpenError(Options()))) << OpenError(Options());
  EXPECT_TRUE(std::filesystem::exists(folder_ / "store/spillway-segment-000000"));
}

TEST_F(StoreOpeningTest, DamageToTheStoreIsDataLossThatNamesTheFile) {
  struct Damage {
    const char* name;
    const char* file;
    std::function<void(const std::string&)> apply;
  };
  const auto sql = [](const char* text) {
    return [text](const std::string& path) { RunSql(path, text); };
  };
  const std::vector<Damage> damages = {
      {"empty catalog", "spillway-catalog.sqlite",
       [](auto& p) { std::filesystem::resize_file(p, 0); }},
      {"short catalog", "spillway-catalog.sqlite",
       [](auto& p) { std::filesystem::resize_file(p, 5000); }},
      {"lost commit", "spillway-catalog.sqlite", sql("DELETE FROM last_commit")},
      {"impossible commit", "spillway-catalog.sqlite",
       sql("PRAGMA ignore_check_constraints = ON; UPDATE last_commit SET number = 0")},
      {"impossible segment", "spillway-catalog.sqlite",
       sql("PRAGMA ignore_check_constraints = ON; UPDATE segments SET size_bytes = 1")},
      {"other store", "spillway-catalog.sqlite",
       sql("UPDATE meta SET value = 'x' WHERE key = 'store_id'")},
      {"short segment", "spillway-segment-000000",
       [](auto& p) { std::filesystem::resize_file(p, 65536); }},
      {"lost segment", "spillway-segment-000000", [](auto& p) { std::filesystem::remove(p); }},
      {"empty identity", "spillway-store", [](auto& p) { std::filesystem::resize_file(p, 0); }},
      {"short identity", "spillway-store", [](auto& p) { std::filesystem::resize_file(p, 60); }},
  };
  MakeStore(Options());
  std::filesystem::copy(folder_ / "store", folder_ / "good");
  for (const Damage& damage : damages) {
    SCOPED_TRACE(damage.name);
    std::filesystem::remove_all(folder_ / "store");
    std::filesystem::copy(folder_ / "good", folder_ / "store");
    damage.apply((folder_ / "store/") + damage.file);
    StoreOptions options = Options();
    options.page_bytes = 0;
    const absl::Status status = OpenError(options);
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(damage.file));
  }
}

// The calibration only makes a store faster.
TEST_F(StoreOpeningTest, AnImpossibleCalibrationIsNotUsedAndCanBeReplaced) {
  MakeStore(Options());
  RunSql(folder_ / "store/spillway-catalog.sqlite",
         "PRAGMA ignore_check_constraints = ON; "
         "INSERT INTO devices VALUES (0, 4096, 1, 1, 1, 0.0, 1.0, 'now')");
  StoreOptions options = Options();
  std::string told;
  options.announce = [&](std::string_view message) { told += message; };
  const DeviceProfile profile = {1 << 20, 8, 4, 2, 7.5e9, 5e9};
  {
    const auto store = Open(options);
    ASSERT_TRUE(store);
    EXPECT_THAT(told, HasSubstr("spillway-catalog.sqlite is damaged"));
    EXPECT_THAT(told, HasSubstr("calibrate it again, with Calibration::kNow"));
    EXPECT_EQ(store->Profile(0), std::nullopt);
    EXPECT_TRUE(PageIs(*store, io_, **store->FindTensor("w"), 3, 1));
    ASSERT_TRUE(store->SetProfile(0, profile).ok());
  }
  told.clear();
  EXPECT_EQ(Open(options)->Profile(0), profile);
  EXPECT_EQ(told, "");
}

// Damage in rows that opening does not read is found when they are read.
TEST_F(StoreOpeningTest, DamageToARowIsDataLossWhenItIsLookedAt) {
  const std::vector<const char*> damages = {
      "UPDATE pages SET offset = offset + (1 << 30) WHERE page = 2",
      "UPDATE pages SET segment = 7 WHERE page = 2",
      "UPDATE pages SET skip_bytes = 8, content_bytes = content_bytes - 8 WHERE page = 2",
      "UPDATE pages SET content_bytes = size_bytes + 1 WHERE page = 2",
      "UPDATE pages SET page = 9 WHERE page = 2",
      "UPDATE tensors SET num_pages = -1",
      "INSERT INTO tensors SELECT id + 1, name, description, num_pages FROM tensors; "
      "INSERT INTO tensor_spans SELECT max(id), 1, NULL FROM tensors",
  };
  MakeStore(Options());
  std::filesystem::copy(folder_ / "store", folder_ / "good");
  for (const char* damage : damages) {
    SCOPED_TRACE(damage);
    std::filesystem::remove_all(folder_ / "store");
    std::filesystem::copy(folder_ / "good", folder_ / "store");
    RunSql(folder_ / "store/spillway-catalog.sqlite",
           absl::StrCat("PRAGMA ignore_check_constraints = ON; ", damage));
    auto store = Open(Options());
    ASSERT_TRUE(store);
    const auto tensor = store->FindTensor("w");
    const absl::Status status =
        tensor.ok() ? store->FindPage(**tensor, 0).status() : tensor.status();
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("spillway-catalog.sqlite"));
  }
}

// Opening reads the size of the newest file only, so that its time does not grow with their number.
TEST_F(StoreOpeningTest, AnOlderFileThatIsTooShortIsFoundWhenItIsUsedOrTrimmed) {
  StoreOptions options = Options();
  options.segment_bytes = kTestPageBytes;
  {
    auto store = Open(options);
    ASSERT_TRUE(store);
    const auto tensor = store->AddTensor({"w", "{}", 3}, false);
    for (uint64_t page = 0; page < 3; ++page)
      ASSERT_TRUE(WritePage(*store, io_, *tensor, page, 1).ok());
    ASSERT_TRUE(store->Commit("one").ok());
  }
  const std::string first = folder_ / "store/spillway-segment-000000";
  std::filesystem::resize_file(first, kIoAlignment);
  auto store = Open(options);
  ASSERT_TRUE(store);
  const TensorIndex tensor = **store->FindTensor("w");
  EXPECT_TRUE(PageIs(*store, io_, tensor, 1, 1));
  const auto record = *store->FindPage(tensor, 0);
  const absl::Status used = store->File(record->extent).status();
  const absl::Status trimmed = store->Trim().status();
  for (const absl::Status& status : {used, trimmed}) {
    EXPECT_TRUE(absl::IsDataLoss(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(first + " is too short"));
  }
  store.reset();
  std::filesystem::remove(first);
  EXPECT_TRUE(absl::IsDataLoss(OpenError(options))) << "a missing file is seen at once";
}

TEST_F(StoreOpeningTest, ACatalogOlderThanTheWitnessIsRefused) {
  MakeStore(Options());
  const std::string catalog = folder_ / "store/spillway-catalog.sqlite";
  const std::string witness = folder_ / "store/spillway-commit";
  std::filesystem::copy_file(catalog, folder_ / "old-catalog");
  std::filesystem::copy_file(witness, folder_ / "old-witness");
  {
    auto store = Open(Options());
    ASSERT_TRUE(WritePage(*store, io_, **store->FindTensor("w"), 0, 2).ok());
    ASSERT_TRUE(store->Commit("two").ok());
  }
  const auto overwrite = std::filesystem::copy_options::overwrite_existing;
  std::filesystem::copy_file(catalog, folder_ / "new-catalog");
  std::filesystem::copy_file(folder_ / "old-catalog", catalog, overwrite);
  const absl::Status status = OpenError(Options());
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("commit 2"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("commit 1"));
  // A user may remove the witness to continue from the older commit.
  std::filesystem::remove(witness);
  EXPECT_EQ(Open(Options())->UserState(), "one");
  // An older witness is no error: a power cut can come before the newer one reaches the disk.
  std::filesystem::copy_file(folder_ / "new-catalog", catalog, overwrite);
  std::filesystem::copy_file(folder_ / "old-witness", witness, overwrite);
  EXPECT_EQ(Open(Options())->UserState(), "two");
}

TEST_F(StoreOpeningTest, AnOlderCopyOfTheFirstFolderIsRefused) {
  const StoreOptions options = TwoFolders();
  MakeStore(options);
  const auto first = std::filesystem::path(options.folders[0]);
  const std::string witness = options.folders[1] + "/spillway-commit";
  EXPECT_TRUE(std::filesystem::exists(witness));
  std::filesystem::copy(first, folder_ / "copy");
  {
    auto store = Open(options);
    ASSERT_TRUE(WritePage(*store, io_, **store->FindTensor("w"), 0, 2).ok());
    ASSERT_TRUE(store->Commit("two").ok());
  }
  std::filesystem::rename(first, folder_ / "newer");
  std::filesystem::rename(folder_ / "copy", first);
  const absl::Status status = OpenError(options);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(witness + " tells of commit 2"));
  EXPECT_TRUE(
      absl::IsDataLoss(StoreView::Open(options.folders, StoreView::Wanted::kAnyState).status()));
  std::filesystem::remove_all(first);
  std::filesystem::rename(folder_ / "newer", first);
  // A store that was made when only the first folder had a witness gets the others' when it
  // commits.
  std::filesystem::remove(witness);
  auto store = Open(options);
  ASSERT_TRUE(store);
  EXPECT_EQ(store->UserState(), "two");
  ASSERT_TRUE(store->Commit("three").ok());
  EXPECT_TRUE(std::filesystem::exists(witness));
}

TEST_F(StoreOpeningTest, AWitnessIsOursAndWholeOrIgnoredOrDataLoss) {
  MakeStore(Options());
  const std::string witness = folder_ / "store/spillway-commit";
  std::string good;
  {
    std::ifstream file(witness);
    good.assign(std::istreambuf_iterator<char>(file), {});
  }
  ASSERT_LT(good.size(), 512u);
  const auto open_with = [&](const std::string& text) {
    std::ofstream(witness, std::ios::trunc) << text;
    return OpenError(Options());
  };
  EXPECT_TRUE(open_with(good).ok());
  EXPECT_TRUE(open_with("").ok());
  EXPECT_TRUE(open_with(std::string(good.size(), '\0')).ok());
  EXPECT_TRUE(open_with("someone else's").ok());
  for (size_t byte = 16; byte < good.size(); ++byte) {
    std::string damaged = good;
    damaged[byte] = static_cast<char>(damaged[byte] ^ 4);
    EXPECT_TRUE(absl::IsDataLoss(open_with(damaged))) << byte;
  }
  EXPECT_TRUE(absl::IsDataLoss(open_with(good.substr(0, 40))));
  EXPECT_TRUE(absl::IsDataLoss(open_with(good + "more")));
}

TEST_F(StoreOpeningTest, ANewerFormatIsRefused) {
  MakeStore(Options());
  std::ofstream(folder_ / "store/spillway-store") << "Spillway store\nversion 4\nwhatever\n";
  const absl::Status status = OpenError(Options());
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("format 4"));
}

TEST_F(StoreOpeningTest, AnOlderFormatIsRefusedWithTheReason) {
  MakeStore(Options());
  std::ofstream(folder_ / "store/spillway-store") << "Spillway store\nversion 1\nwhatever\n";
  const absl::Status status = OpenError(Options());
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("format 1"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("cannot upgrade"));
}

TEST_F(StoreOpeningTest, AFolderThatCannotBeWrittenIsUnavailable) {
  std::filesystem::create_directory(folder_ / "store");
  std::filesystem::permissions(folder_ / "store", std::filesystem::perms::owner_read |
                                                      std::filesystem::perms::owner_exec |
                                                      std::filesystem::perms::others_read |
                                                      std::filesystem::perms::others_exec);
  std::filesystem::permissions(folder_.path(), std::filesystem::perms::others_exec,
                               std::filesystem::perm_options::add);
  const pid_t child = ::fork();
  if (child == 0) {
    if (::geteuid() == 0 && ::setuid(65534) != 0) ::_exit(2);
    NamingIoEngine io;
    const absl::Status status = Store::Open(Options(), &io).status();
    std::cerr << status << "\n";
    ::_exit(absl::IsUnavailable(status) ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace spillway::io
