// SPDX-License-Identifier: Apache-2.0

#include "tools/hf/file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <filesystem>
#include <string>

#include "tests/hf/status_matchers.h"
#include "tests/hf/test_files.h"

namespace spillway::hf {
namespace {

// Limits the size of every file that this process writes to `bytes` while the object exists. It is
// the closest imitation of a full disk that needs no privilege.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : previous_handler_(::signal(SIGXFSZ, SIG_IGN)) {
    EXPECT_EQ(::getrlimit(RLIMIT_FSIZE, &previous_), 0);
    const rlimit limit = {bytes, previous_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
  }
  FileSizeLimit(const FileSizeLimit&) = delete;
  FileSizeLimit& operator=(const FileSizeLimit&) = delete;
  ~FileSizeLimit() {
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &previous_), 0);
    ::signal(SIGXFSZ, previous_handler_);
  }

 private:
  rlimit previous_ = {};
  void (*previous_handler_)(int);
};

TEST(AtomicFile, AppearsOnlyWhenCommitted) {
  const TempFolder folder;
  {
    auto file = AtomicFile::Create(folder / "a", IfExists::kFail);
    ASSERT_THAT(file, IsOk());
    ASSERT_THAT((*file)->Append("te"), IsOk());
    ASSERT_THAT((*file)->Append("xt"), IsOk());
    EXPECT_FALSE(std::filesystem::exists(folder / "a"));
    ASSERT_THAT((*file)->Commit(), IsOk());
  }
  EXPECT_EQ(ReadFile(folder / "a"), "text");
  EXPECT_EQ(FilesIn(folder.path()), (std::vector<std::string>{"a"}));
}

TEST(AtomicFile, WithoutCommitNothingRemains) {
  const TempFolder folder;
  {
    ASSERT_THAT(AtomicFile::Create(folder / "a", IfExists::kFail), IsOk());
  }
  EXPECT_TRUE(FilesIn(folder.path()).empty());
}

TEST(AtomicFile, ReplacesOnlyWhenTold) {
  const TempFolder folder;
  ASSERT_THAT(WriteTextFile(folder / "a", "one", IfExists::kFail), IsOk());
  EXPECT_THAT(WriteTextFile(folder / "a", "two", IfExists::kFail),
              IsError(absl::StatusCode::kAlreadyExists, "/a"));
  EXPECT_EQ(ReadFile(folder / "a"), "one");
  ASSERT_THAT(WriteTextFile(folder / "a", "two", IfExists::kReplace), IsOk());
  EXPECT_EQ(ReadFile(folder / "a"), "two");
  EXPECT_EQ(FilesIn(folder.path()).size(), 1u);
}

TEST(AtomicFile, TwoWritersOfOneNameDoNotMeet) {
  const TempFolder folder;
  auto first = AtomicFile::Create(folder / "a", IfExists::kFail);
  auto second = AtomicFile::Create(folder / "a", IfExists::kFail);
  ASSERT_THAT(first, IsOk());
  ASSERT_THAT(second, IsOk());
  ASSERT_THAT((*first)->Append("first"), IsOk());
  ASSERT_THAT((*second)->Append("second"), IsOk());
  ASSERT_THAT((*first)->Commit(), IsOk());
  EXPECT_THAT((*second)->Commit(), IsError(absl::StatusCode::kAlreadyExists, "is not overwritten"));
  second->reset();
  EXPECT_EQ(ReadFile(folder / "a"), "first");
  EXPECT_EQ(FilesIn(folder.path()).size(), 1u);
}

TEST(AtomicFile, HasTheRightsThatAnyNewFileHas) {
  const TempFolder folder;
  ASSERT_THAT(WriteTextFile(folder / "a", "", IfExists::kFail), IsOk());
  WriteFile(folder / "b", "");
  EXPECT_EQ(std::filesystem::status(folder / "a").permissions(),
            std::filesystem::status(folder / "b").permissions());
}

TEST(AtomicFile, AFileThatCannotGrowIsResourceExhausted) {
  const TempFolder folder;
  {
    const FileSizeLimit limit(1000);
    EXPECT_THAT(WriteTextFile(folder / "a", std::string(5000, 'x'), IfExists::kFail),
                IsError(absl::StatusCode::kResourceExhausted, "/a: cannot be written"));
  }
  EXPECT_TRUE(FilesIn(folder.path()).empty());
}

TEST(AtomicFile, AMissingFolderIsNamed) {
  const TempFolder folder;
  EXPECT_THAT(AtomicFile::Create(folder / "none/a", IfExists::kFail),
              IsError(absl::StatusCode::kNotFound, "/none/a: cannot be created"));
}

TEST(ReadTextFile, IsBounded) {
  const TempFolder folder;
  WriteFile(folder / "a", "12345");
  EXPECT_EQ(*ReadTextFile(folder / "a", 5), "12345");
  EXPECT_THAT(ReadTextFile(folder / "a", 4), IsInvalid("has 5 bytes; at most 4 are expected"));
}

}  // namespace
}  // namespace spillway::hf
