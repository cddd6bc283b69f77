// SPDX-License-Identifier: Apache-2.0
//
// Tests which engine MakeIoEngine makes. To imitate a machine without io_uring, a seccomp filter on
// one thread refuses io_uring_setup, as container run times do.

#include "io/make_io_engine.h"

#include <sys/syscall.h>

#include <cerrno>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/io/io_test_util.h"
#include "tests/io/seccomp.h"
#include "tests/temp_folder.h"

namespace spillway::io {
namespace {

using testing::HasSubstr;

// What MakeIoEngine returned and announced while one system call was forbidden (0: none).
struct Made {
  bool filtered = true;
  std::string name;
  absl::Status status;
  std::vector<std::string> said;
};

Made MakeWithout(long syscall, IoKind kind, const std::string& folder = testing::TempDir()) {
  Made made;
  std::thread([&] {
    if (syscall != 0) made.filtered = ForbidInThisThread(syscall, EPERM);
    const auto announce = [&](std::string_view text) { made.said.emplace_back(text); };
    absl::StatusOr<std::unique_ptr<IoEngine>> engine = MakeIoEngine(kind, {}, folder, announce);
    made.status = engine.status();
    if (engine.ok()) made.name = (*engine)->name();
  }).join();
  return made;
}

TEST(MakeIoEngine, PosixWorksEverywhere) {
  const Made made = MakeWithout(SYS_io_uring_setup, IoKind::kPosix);
  EXPECT_EQ(made.name, "posix") << made.status;
  EXPECT_TRUE(made.said.empty());
}

TEST(MakeIoEngine, AutoFallsBackToThreadsAndSaysSoOnce) {
  const Made made = MakeWithout(SYS_io_uring_setup, IoKind::kAuto);
  if (!made.filtered) GTEST_SKIP() << "the kernel takes no seccomp filter";
  EXPECT_EQ(made.name, "posix") << made.status;
  ASSERT_EQ(made.said.size(), 1u);
  EXPECT_THAT(made.said[0], HasSubstr("io_uring_setup"));
}

TEST(MakeIoEngine, ARingThatIsSetUpAndThenFailsFallsBackToo) {
  for (const long syscall : {SYS_io_uring_register, SYS_io_uring_enter}) {
    const Made made = MakeWithout(syscall, IoKind::kAuto);
    if (!made.filtered) GTEST_SKIP() << "the kernel takes no seccomp filter";
    EXPECT_EQ(made.name, "posix") << made.status;
    ASSERT_EQ(made.said.size(), 1u);
    EXPECT_THAT(made.said[0], HasSubstr("io_uring"));
  }
}

TEST(MakeIoEngine, UringThatDoesNotWorkIsUnimplementedWithItsCause) {
  const Made made = MakeWithout(SYS_io_uring_setup, IoKind::kUring);
  if (!made.filtered) GTEST_SKIP() << "the kernel takes no seccomp filter";
  EXPECT_EQ(made.status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(made.status.message(), HasSubstr("io_uring_setup"));
  EXPECT_THAT(made.status.message(), HasSubstr("posix"));
}

TEST(MakeIoEngine, AFolderThatTakesNoFileIsAnErrorOfItsOwn) {
  for (const IoKind kind : {IoKind::kAuto, IoKind::kUring, IoKind::kPosix}) {
    const std::string folder = testing::TempDir() + "/spillway-absent";
    const Made made = MakeWithout(0, kind, folder);
    EXPECT_EQ(made.status.code(), absl::StatusCode::kNotFound) << made.status;
    EXPECT_THAT(made.status.message(), HasSubstr(folder));
    EXPECT_TRUE(made.said.empty());
  }
}

TEST(MakeIoEngine, TheProbeLeavesNothing) {
  const test::TempFolder folder;
  EXPECT_TRUE(MakeWithout(0, IoKind::kAuto, folder.path()).status.ok());
  EXPECT_TRUE(test::FilesIn(folder.path()).empty());
}

TEST(MakeIoEngine, TheDepthHasLimits) {
  for (const int depth : {0, -1, kMaxQueueDepth + 1}) {
    const absl::Status status =
        MakeIoEngine(IoKind::kAuto, {.queue_depth = depth}, testing::TempDir()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << depth;
  }
}

}  // namespace
}  // namespace spillway::io
