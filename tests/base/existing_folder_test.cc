// SPDX-License-Identifier: Apache-2.0
//
// Tests which symbolic links on a path lead to no folder, and how they are described.

#include "src/base/existing_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "tests/temp_folder.h"

namespace spillway::base {
namespace {

namespace fs = std::filesystem;
using test::TempFolder;

TEST(ExistingFolder, IsTheNearestThatIsThere) {
  const TempFolder folder;
  EXPECT_EQ(ExistingFolder(folder.path()), folder.path());
  EXPECT_EQ(ExistingFolder(folder / "a/b"), folder.path());
  fs::create_symlink("missing", folder / "link");
  EXPECT_EQ(ExistingFolder(folder / "link/b"), folder.path());
}

TEST(BrokenLink, PathsWithoutAny) {
  const TempFolder folder;
  fs::create_directory(folder / "real");
  fs::create_directory_symlink("real", folder / "link");
  fs::create_directory_symlink(folder / "link", folder / "second");
  for (const char* path : {"", "real", "link", "second", "link/", "link/missing", "missing/a/b"}) {
    EXPECT_EQ(BrokenLink(folder / path), "") << path;
  }
}

TEST(BrokenLink, NamesTheLinkAndWhereItPoints) {
  const TempFolder folder;
  test::WriteFile(folder / "file", "text");
  fs::create_symlink("missing", folder / "dangling");
  fs::create_symlink(folder / "dangling", folder / "chain");
  fs::create_symlink("file", folder / "to-file");
  fs::create_symlink("self", folder / "self");
  fs::create_symlink("two", folder / "one");
  fs::create_symlink("one", folder / "two");
  for (const char* below : {"", "/", "/a", "/a/b"}) {
    EXPECT_EQ(BrokenLink(folder / "dangling" + below),
              folder / "dangling" + " is a symbolic link to missing, which does not exist; make " +
                  "that folder, or remove the link");
    EXPECT_EQ(BrokenLink(folder / "chain" + below),
              folder / "chain" + " is a symbolic link to " + (folder / "dangling") +
                  ", a link to missing, which does not exist; make that folder, or remove the " +
                  "link");
    EXPECT_EQ(BrokenLink(folder / "to-file" + below),
              folder / "to-file" + " is a symbolic link to file, which is not a folder; remove " +
                  "the link, or name another folder");
    EXPECT_THAT(BrokenLink(folder / "self" + below),
                ::testing::StartsWith(folder / "self" + " is a symbolic link to self, "));
    EXPECT_THAT(BrokenLink(folder / "one" + below),
                ::testing::AllOf(
                    ::testing::StartsWith(folder / "one" + " is a symbolic link to two, a link to"),
                    ::testing::HasSubstr("which leads round in a circle; remove the link")));
  }
}

}  // namespace
}  // namespace spillway::base
