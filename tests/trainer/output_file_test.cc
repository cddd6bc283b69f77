// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/metrics/output_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <filesystem>
#include <iterator>
#include <string>

#include "tests/temp_folder.h"

namespace spillway::trainer {
namespace {

namespace fs = std::filesystem;
using test::TempFolder;
using ::testing::AllOf;
using ::testing::HasSubstr;
using IfOther = OutputFile::IfOther;

constexpr OutputFile::Kind kPage = {"a page", "<page>", "<title>ours</title>"};

TEST(OutputFile, WhatItMadeGoesAgainUnlessItWasUsed) {
  const TempFolder folder;
  const std::string path = folder / "page";
  ASSERT_TRUE(OutputFile::Open(path, kPage).ok());
  EXPECT_FALSE(fs::exists(path));
  {
    auto file = OutputFile::Open(path, kPage);
    ASSERT_TRUE(file.ok()) << file.status();
    ASSERT_TRUE(file->Append("<page>").ok());
  }
  EXPECT_EQ(test::ReadFile(path), "<page>");
}

TEST(OutputFile, AFileOfItsKindIsTakenAndLeftAsItIs) {
  const TempFolder folder;
  const std::string path = folder / "page";
  const std::string whole = "<page> <title>ours</title> and so on";
  for (const std::string& text : {std::string(), std::string("<pa"), whole}) {
    test::WriteFile(path, text);
    EXPECT_TRUE(OutputFile::Open(path, kPage).ok()) << text;
    EXPECT_EQ(test::ReadFile(path), text);
  }
}

TEST(OutputFile, AnotherFileIsRefusedUnlessItMayBeReplaced) {
  const TempFolder folder;
  const std::string path = folder / "letter";
  test::WriteFile(path, "Dear Sir");
  const auto refused = OutputFile::Open(path, kPage);
  EXPECT_TRUE(absl::IsAlreadyExists(refused.status()));
  EXPECT_THAT(std::string(refused.status().message()),
              AllOf(HasSubstr(path), HasSubstr("is not a page"), HasSubstr("--force")));
  fs::create_symlink(path, folder / "link");
  EXPECT_TRUE(absl::IsAlreadyExists(OutputFile::Open(folder / "link", kPage).status()));
  EXPECT_EQ(test::ReadFile(path), "Dear Sir");
  auto taken = OutputFile::Open(path, kPage, IfOther::kReplace);
  ASSERT_TRUE(taken.ok()) << taken.status();
  ASSERT_TRUE(taken->Cut(0).ok());
  EXPECT_EQ(test::ReadFile(path), "");
}

TEST(OutputFile, AFileThatGrowsHasOneWriter) {
  const TempFolder folder;
  const std::string path = folder / "log";
  constexpr OutputFile::Kind kLog = {"a log", "{", "step", /*grows=*/true};
  {
    auto first = OutputFile::Open(path, kLog);
    ASSERT_TRUE(first.ok()) << first.status();
    ASSERT_TRUE(first->Append("{step}").ok());
    const auto second = OutputFile::Open(path, kLog);
    EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable) << second.status();
  }
  EXPECT_TRUE(OutputFile::Open(path, kLog).ok());
}

TEST(OutputFile, ALinkToNothingIsRefused) {
  const TempFolder folder;
  fs::create_symlink(folder / "victim", folder / "link");
  const auto refused = OutputFile::Open(folder / "link", kPage);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("symbolic link to nothing"));
  EXPECT_FALSE(fs::exists(folder / "victim"));
}

TEST(OutputFile, AFolderIsNoFile) {
  const TempFolder folder;
  const auto refused = OutputFile::Open(folder / ".", kPage);
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("Is a directory"));
}

TEST(OutputFile, ADeviceIsTakenAsItIs) {
  auto file = OutputFile::Open("/dev/null", kPage);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE(file->Cut(0).ok());
  EXPECT_TRUE(file->Append("<page>").ok());
}

TEST(OutputFile, IsReplacedWholeAndKeepsItsRightsAndItsName) {
  const TempFolder folder;
  const std::string path = folder / "page";
  test::WriteFile(path, "<page> <title>ours</title>");
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  fs::create_symlink(path, folder / "link");
  auto file = OutputFile::Open(folder / "link", kPage);
  ASSERT_TRUE(file.ok()) << file.status();
  {
    const auto beside = file->Beside();
    ASSERT_TRUE(beside.ok()) << beside.status();
  }
  EXPECT_EQ(test::ReadFile(path), "<page> <title>ours</title>");
  for (const char* text : {"<page> one", "<page> two"}) {
    ASSERT_TRUE(file->Replace(text).ok());
    EXPECT_EQ(test::ReadFile(path), text);
  }
  struct stat info{};
  ASSERT_EQ(stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600U);
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path()), {}), 2);
}

// A partial line would make the rest of a log unreadable.
TEST(OutputFile, WhatDoesNotFitIsCutOffAgain) {
  const TempFolder folder;
  const std::string path = folder / "page";
  auto file = OutputFile::Open(path, kPage);
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_TRUE(file->Append("<page>").ok());
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const rlimit small = {10, before.rlim_max};
  const auto handler = signal(SIGXFSZ, SIG_IGN);
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status full = file->Append("a line that is longer\n");
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
  signal(SIGXFSZ, handler);
  EXPECT_THAT(std::string(full.message()), HasSubstr("File too large"));
  EXPECT_EQ(test::ReadFile(path), "<page>");
}

}  // namespace
}  // namespace spillway::trainer
