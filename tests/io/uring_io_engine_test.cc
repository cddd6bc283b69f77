// SPDX-License-Identifier: Apache-2.0
//
// Tests what only the io_uring engine does: registration and its limits, the bound on requests in
// the kernel, a ring that breaks in use. The conformance suite tests the rest.

#include "io/uring_io_engine.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "io/make_io_engine.h"
#include "tests/io/io_test_util.h"
#include "tests/io/io_uring_here.h"
#include "tests/io/seccomp.h"

namespace spillway::io {
namespace {

using testing::HasSubstr;

constexpr size_t kMiB = size_t{1} << 20;

class UringIoEngineTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!CanRun(IoKind::kUring)) GTEST_SKIP() << kNoIoUring;
  }

  static std::unique_ptr<UringIoEngine> Make(IoEngineOptions options = {}) {
    absl::StatusOr<std::unique_ptr<UringIoEngine>> engine =
        UringIoEngine::Create(std::move(options));
    EXPECT_TRUE(engine.ok()) << engine.status();
    return std::move(*engine);
  }

  const DirectFile file_ = NamelessFile();
};

std::vector<IoRequest> Blocks(IoOp op, FileId file, const AlignedBuffer& memory) {
  std::vector<IoRequest> requests;
  for (uint64_t offset = 0; offset < memory.size(); offset += kIoAlignment) {
    requests.push_back({op, file, offset, memory.data() + offset, kIoAlignment, offset});
  }
  return requests;
}

TEST_F(UringIoEngineTest, GivesTheKernelAtMostItsDepth) {
  const AlignedBuffer memory(kMiB);
  for (const int depth : {1, 3, 16}) {
    const auto engine = Make({.queue_depth = depth});
    const FileId id = *engine->AddFile(file_.fd(), "file", 0);
    engine->Submit(Blocks(IoOp::kWrite, id, memory));
    // One round of completions has no more requests than the kernel was given.
    while (engine->in_flight() > 0) {
      std::vector<IoCompletion> done;
      engine->Reap(absl::InfiniteDuration(), &done);
      EXPECT_LE(done.size(), static_cast<size_t>(depth));
    }
  }
}

TEST_F(UringIoEngineTest, RegistersManyBuffersAndForgetsThem) {
  const auto engine = Make();
  const FileId id = *engine->AddFile(file_.fd(), "file", 0);
  const AlignedBuffer memory(64 * kIoAlignment);
  for (int round = 0; round < 3; ++round) {
    // Adds the buffers in an order that is not by address.
    for (uint64_t i = 0; i < 64; ++i) {
      engine->AddBuffer(memory.span().subspan(i * 37 % 64 * kIoAlignment, kIoAlignment));
    }
    EXPECT_EQ(engine->unregistered_buffers(), 0);
    FillPattern(memory.span(), static_cast<uint64_t>(round));
    engine->Submit(Blocks(IoOp::kWrite, id, memory));
    for (const IoCompletion& completion : ReapAll(*engine)) EXPECT_TRUE(completion.status.ok());
    std::memset(memory.data(), 0, memory.size());
    engine->Submit(Blocks(IoOp::kRead, id, memory));
    for (const IoCompletion& completion : ReapAll(*engine)) EXPECT_TRUE(completion.status.ok());
    EXPECT_TRUE(HasPattern(memory.span(), static_cast<uint64_t>(round)));
    engine->RemoveBuffers();
  }
}

TEST_F(UringIoEngineTest, ABufferTooLargeToRegisterTakesThePlainPath) {
  constexpr size_t kTooLarge = (size_t{1} << 30) + kIoAlignment;
  void* reserved = ::mmap(nullptr, kTooLarge, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(reserved, MAP_FAILED);
  const std::span<std::byte> memory(static_cast<std::byte*>(reserved), kTooLarge);
  {
    const auto engine = Make();
    const FileId id = *engine->AddFile(file_.fd(), "file", 0);
    engine->AddBuffer(memory);
    EXPECT_EQ(engine->unregistered_buffers(), 1);
    FillPattern(memory.first(kMiB), 1);
    EXPECT_TRUE(Transact(*engine, {IoOp::kWrite, id, 0, memory.data(), kMiB, 1}).ok());
    std::byte* in = memory.data() + kMiB;
    EXPECT_TRUE(Transact(*engine, {IoOp::kRead, id, 0, in, kMiB, 2}).ok());
    EXPECT_TRUE(HasPattern({in, kMiB}, 1));
    engine->RemoveBuffers();
    EXPECT_EQ(engine->unregistered_buffers(), 0);
  }
  ::munmap(reserved, kTooLarge);
}

// Makes this thread another user's if that is permitted. It then has no CAP_IPC_LOCK, so that
// RLIMIT_MEMLOCK binds it, and nothing locked yet, since the limit counts what all processes of a
// user lock together. Returns whether the limit binds the thread.
bool BecomeAnotherUser() {
  const long nobody = 65534;
  if (::syscall(SYS_setresuid, nobody, nobody, nobody) == 0) return true;
  return ::geteuid() != 0;  // the limit already binds an ordinary user
}

TEST_F(UringIoEngineTest, WithoutMemoryToLockItTakesThePlainPath) {
  rlimit before;
  ASSERT_EQ(0, ::getrlimit(RLIMIT_MEMLOCK, &before));
  const AlignedBuffer memory(8 * kMiB);
  FillPattern(memory.span().first(kMiB), 4);
  bool is_bound = false;
  std::thread([&] {
    const rlimit tight = {.rlim_cur = 1 << 20, .rlim_max = before.rlim_max};
    ASSERT_EQ(0, ::setrlimit(RLIMIT_MEMLOCK, &tight));
    is_bound = BecomeAnotherUser();
    if (!is_bound) return;
    const auto engine = Make();
    const FileId id = *engine->AddFile(file_.fd(), "file", 0);
    engine->AddBuffer(memory.span());
    EXPECT_EQ(engine->unregistered_buffers(), 1);
    EXPECT_TRUE(Transact(*engine, {IoOp::kWrite, id, 0, memory.data(), kMiB, 1}).ok());
    EXPECT_TRUE(Transact(*engine, {IoOp::kRead, id, 0, memory.data() + kMiB, kMiB, 2}).ok());
  }).join();
  ASSERT_EQ(0, ::setrlimit(RLIMIT_MEMLOCK, &before));
  ASSERT_EQ(0, ::prctl(PR_SET_DUMPABLE, 1));  // a change of user clears it; sanitizers need it
  if (!is_bound) GTEST_SKIP() << "root may not become another user here";
  EXPECT_TRUE(HasPattern(memory.span().subspan(kMiB, kMiB), 4));
}

TEST_F(UringIoEngineTest, ARingThatBreaksInUseFailsWhatIsOnItsWay) {
  const AlignedBuffer memory(kMiB);
  std::thread([&] {
    const auto engine = Make({.queue_depth = 4});
    const FileId id = *engine->AddFile(file_.fd(), "file", 0);
    EXPECT_TRUE(Transact(*engine, {IoOp::kWrite, id, 0, memory.data(), kMiB, 1}).ok());
    engine->Submit(Blocks(IoOp::kRead, id, memory));
    if (!ForbidInThisThread(SYS_io_uring_enter, EPERM)) return;
    std::set<uint64_t> tags;
    for (const IoCompletion& completion : ReapAll(*engine)) {
      EXPECT_TRUE(tags.insert(completion.tag).second);
      if (completion.status.ok()) continue;
      EXPECT_THAT(completion.status.message(), HasSubstr("io_uring_enter"));
      EXPECT_THAT(completion.status.message(),
                  HasSubstr(absl::StrCat("read of 4096 B at offset ", completion.tag, " of file")));
      EXPECT_THAT(completion.status.message(), HasSubstr("open the engine again"));
    }
    EXPECT_EQ(tags.size(), kMiB / kIoAlignment);
    EXPECT_FALSE(Transact(*engine, {IoOp::kRead, id, 0, memory.data(), kMiB, 2}).ok());
    std::vector<IoCompletion> done;
    engine->Wake();
    engine->Reap(absl::InfiniteDuration(), &done);  // a wake-up still ends a wait
    engine->Reap(absl::Milliseconds(1), &done);
    EXPECT_TRUE(done.empty());
  }).join();
}

// A process that was forked by the system call itself has the ring's descriptor, so the kernel
// keeps the ring until that process ends.
TEST_F(UringIoEngineTest, ClosesARingThatAnotherProcessKeeps) {
  const AlignedBuffer memory(kMiB);
  auto engine = Make();
  const FileId id = *engine->AddFile(file_.fd(), "file", 0);
  engine->AddBuffer(memory.span());
  std::thread([&] {
    EXPECT_TRUE(Transact(*engine, {IoOp::kWrite, id, 0, memory.data(), kMiB, 1}).ok());
  }).join();
  const auto child = static_cast<pid_t>(::syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0));
  if (child == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // should the test be ended from outside
    while (true) ::pause();
  }
  ASSERT_GT(child, 0);
  engine->RemoveBuffers();
  EXPECT_TRUE(engine->RemoveFile(id).ok());
  const FileId again = *engine->AddFile(file_.fd(), "file", 0);
  EXPECT_TRUE(Transact(*engine, {IoOp::kRead, again, 0, memory.data(), kMiB, 2}).ok());
  engine.reset();
  EXPECT_EQ(::kill(child, SIGKILL), 0);
  EXPECT_EQ(::waitpid(child, nullptr, 0), child);
}

}  // namespace
}  // namespace spillway::io
