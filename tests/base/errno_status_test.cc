// SPDX-License-Identifier: Apache-2.0

#include "src/base/errno_status.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <cerrno>
#include <string>

namespace spillway::base {
namespace {

TEST(ErrnoStatus, NamesTheOperationTheMeaningAndTheErrno) {
  const absl::Status status = ErrnoToStatus(ENOSPC, "write 'a/segment-0' at offset 4096");
  EXPECT_EQ(std::string(status.message()),
            "write 'a/segment-0' at offset 4096: No space left on device (ENOSPC)");
}

TEST(ErrnoStatus, TooManyFilesNamesTheLimitAndTheFix) {
  rlimit limit;
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &limit), 0);
  EXPECT_EQ(std::string(ErrnoToStatus(EMFILE, "open a").message()),
            "open a: Too many open files (EMFILE); this process may have " +
                std::to_string(limit.rlim_cur) + " files open: raise that limit ('ulimit -n')");
}

TEST(ErrnoStatus, AThreadThatDoesNotStartNamesTheLimits) {
  const absl::Status status = ThreadErrorToStatus(EAGAIN, "a thread");
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  const std::string message(status.message());
  EXPECT_TRUE(
      message.starts_with("cannot start a thread: Resource temporarily unavailable (EAGAIN)"))
      << message;
  EXPECT_NE(message.find("'ulimit -u'"), std::string::npos) << message;
}

TEST(ErrnoStatus, AnUnknownErrnoIsANumber) {
  EXPECT_EQ(std::string(ErrnoToStatus(99999, "read").message()), "read: unknown error (99999)");
}

TEST(ErrnoStatus, CodesAreWhatTheHeaderPromises) {
  const auto code = [](int error) { return ErrnoToStatus(error, "").code(); };
  for (const int error : {ENOSPC, EDQUOT, ENOMEM, EMFILE, ENFILE})
    EXPECT_EQ(code(error), absl::StatusCode::kResourceExhausted) << error;
  for (const int error : {EACCES, EPERM, EROFS})
    EXPECT_EQ(code(error), absl::StatusCode::kFailedPrecondition) << error;
  EXPECT_EQ(code(ENOENT), absl::StatusCode::kNotFound);
  EXPECT_EQ(code(EEXIST), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(code(EINVAL), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code(EIO), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace spillway::base
