// SPDX-License-Identifier: Apache-2.0

#include "io/direct_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace spillway::io {
namespace {

using testing::HasSubstr;

TEST(DirectFile, ClosesItsDescriptorOnceAndMoves) {
  absl::StatusOr<DirectFile> file = OpenDirect(testing::TempDir(), O_RDONLY | O_DIRECTORY);
  ASSERT_TRUE(file.ok()) << file.status();
  const int fd = file->fd();
  {
    const DirectFile moved = std::move(*file);
    EXPECT_EQ(moved.fd(), fd);
    EXPECT_EQ(file->fd(), -1);
    EXPECT_EQ(::fcntl(fd, F_GETFD), FD_CLOEXEC);
  }
  EXPECT_EQ(::fcntl(fd, F_GETFD), -1);
}

TEST(OpenDirect, FailsWithTheErrnoAndThePath) {
  const std::string path = absl::StrCat(testing::TempDir(), "/spillway-absent/file");
  const absl::Status status = OpenDirect(path, O_RDWR | O_CREAT).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(status.message(), HasSubstr(path));
}

TEST(OpenDirect, DoesNotReplaceAFileUnderExclusiveCreation) {
  std::string path = absl::StrCat(testing::TempDir(), "/spillway-direct-XXXXXX");
  ::close(::mkstemp(path.data()));
  EXPECT_EQ(OpenDirect(path, O_RDWR | O_CREAT | O_EXCL).status().code(),
            absl::StatusCode::kAlreadyExists);
  ::unlink(path.c_str());
}

// procfs has no O_DIRECT on any kernel.
TEST(OpenDirect, FallsBackToTheCacheAndSaysSo) {
  std::vector<std::string> said;
  const auto announce = [&](std::string_view text) { said.emplace_back(text); };
  const absl::StatusOr<DirectFile> file = OpenDirect("/proc/self/status", O_RDONLY, announce);
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_FALSE(file->is_direct());
  ASSERT_EQ(said.size(), 1u);
  EXPECT_THAT(said[0], HasSubstr("O_DIRECT is refused in /proc/self"));
  char byte;
  EXPECT_EQ(::read(file->fd(), &byte, 1), 1);

  EXPECT_TRUE(OpenDirect("/proc/self/stat", O_RDONLY, announce).ok());
  EXPECT_EQ(said[0], said[1]);  // equal, so a caller can report the first one only
}

}  // namespace
}  // namespace spillway::io
