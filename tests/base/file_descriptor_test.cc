// SPDX-License-Identifier: Apache-2.0

#include "src/base/file_descriptor.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

namespace spillway::base {
namespace {

TEST(FileDescriptor, AStandardStreamsNumberIsNeverGivenOut) {
  const int saved = ::dup(STDIN_FILENO);
  ASSERT_GE(saved, 0);
  ::close(STDIN_FILENO);
  const int low = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  EXPECT_EQ(low, STDIN_FILENO);
  const int above = AboveStandardStreams(low);
  EXPECT_GT(above, STDERR_FILENO);
  EXPECT_NE(::fcntl(above, F_GETFD) & FD_CLOEXEC, 0);
  EXPECT_LT(::fcntl(STDIN_FILENO, F_GETFD), 0) << "the one given is closed";
  ::close(above);
  ::dup2(saved, STDIN_FILENO);
  ::close(saved);
}

TEST(FileDescriptor, OthersAreLeftAlone) {
  EXPECT_EQ(AboveStandardStreams(7), 7);
  EXPECT_EQ(AboveStandardStreams(-1), -1);
}

}  // namespace
}  // namespace spillway::base
