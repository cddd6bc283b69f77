// SPDX-License-Identifier: Apache-2.0
//
// Tests of a process that is forked from one with an engine, as a data loader's worker is. In the
// child, every call returns an error that says so, and nothing waits for threads that the fork did
// not copy. The parent's engine keeps working.

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "spillway/engine.h"
#include "tests/temp_folder.h"

namespace spillway {
namespace {

// Runs `body` in a forked child. Returns what `body` returned, or -1 if a signal ended the child.
int InChild(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);  // also ends a child that waits for a thread that is not there
    ::_exit(body());
  }
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

class ForkedEngineTest : public testing::Test {
 protected:
  ForkedEngineTest() {
    auto engine = Engine::Open({.store = {folder_ / "s"},
                                .device_bytes = kMiB,
                                .pinned_bytes = kMiB,
                                .page_bytes = 4 * kKiB});
    EXPECT_TRUE(engine.ok()) << engine.status();
    engine_ = *std::move(engine);
    id_ = *engine_->Register({.name = "w", .dtype = DType::kU8, .shape = {kTileBytes}});
    Put(std::byte{1});
  }
  void Put(std::byte value) {
    const auto lease = engine_->Acquire(id_, Access::kReadWrite);
    ASSERT_TRUE(lease.ok()) << lease.status();
    lease->data()[kTileBytes - 1] = value;
  }
  std::byte Get() {
    const auto lease = engine_->Acquire(id_, Access::kRead);
    EXPECT_TRUE(lease.ok()) << lease.status();
    return lease->data()[kTileBytes - 1];
  }

  static constexpr int64_t kTileBytes = 8192;
  test::TempFolder folder_;
  std::unique_ptr<Engine> engine_;
  TensorId id_;
};

TEST_F(ForkedEngineTest, EveryCallIsRefused) {
  const int wrong = InChild([this] {
    const std::vector<std::pair<const char*, absl::Status>> answers = {
        {"Register", engine_->Register({.name = "v", .shape = {1}}).status()},
        {"Unregister", engine_->Unregister(id_)},
        {"ForgetName", engine_->ForgetName("w")},
        {"Find", engine_->Find("w").status()},
        {"CheckTile", engine_->CheckTile({id_, 0})},
        {"Acquire", engine_->Acquire(id_, Access::kRead).status()},
        {"AcquireHost", engine_->AcquireHost(id_, Access::kRead).status()},
        {"Prefetch", engine_->Prefetch(std::vector<Use>{{id_}})},
        {"Evict", engine_->Evict(id_)},
        {"Discard", engine_->Discard(id_)},
        {"EndStep", engine_->EndStep()},
        {"WaitForPlan", engine_->WaitForPlan()},
        {"Commit", engine_->Commit("")},
        {"Snapshot", engine_->Snapshot("s")},
        {"Snapshots", engine_->Snapshots().status()},
        {"Restore", engine_->Restore("s")},
        {"Drop", engine_->Drop("s")},
        {"CreateStream", engine_->CreateStream().status()},
        {"WrapStream", engine_->WrapStream(nullptr).status()},
        {"CheckProcess", engine_->CheckProcess()},
    };
    for (const auto& [call, status] : answers) {
      const bool is_told = absl::IsFailedPrecondition(status) &&
                           status.message().find("was forked from process") != std::string::npos;
      if (is_told) continue;
      std::fprintf(stderr, "%s: %s\n", call, status.ToString().c_str());
      return 1;
    }
    (void)engine_->Stats();
    (void)engine_->TakeTimeline();
    (void)engine_->UserState();
    (void)engine_->CommitNumber();
    engine_->ClearPrefetch();
    return 0;
  });
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(Get(), std::byte{1});
}

TEST_F(ForkedEngineTest, WhatItHoldsMayBeDestroyed) {
  auto stream = engine_->CreateStream();
  ASSERT_TRUE(stream.ok()) << stream.status();
  auto lease = engine_->Acquire(id_, Access::kReadWrite, stream->get());
  ASSERT_TRUE(lease.ok()) << lease.status();
  const int wrong = InChild([&] {
    lease->Release();
    stream->reset();
    engine_.reset();
    return 0;
  });
  EXPECT_EQ(wrong, 0);
  // The parent's objects are unchanged, and the child did not release the store.
  lease->data()[kTileBytes - 1] = std::byte{5};
  lease->Release();
  EXPECT_EQ(Get(), std::byte{5});
  const absl::Status committed = engine_->Commit("after");
  EXPECT_TRUE(committed.ok()) << committed;
  EXPECT_EQ(engine_->CommitNumber(), 1u);
}

// A forked process that lives until it is told to end, or until this process ends.
class LivingChild {
 public:
  LivingChild() {
    int fds[2];
    EXPECT_EQ(::pipe(fds), 0);
    child_ = ::fork();
    if (child_ == 0) {
      ::close(fds[1]);
      char byte;
      (void)!::read(fds[0], &byte, 1);
      ::_exit(0);
    }
    ::close(fds[0]);
    end_ = fds[1];
  }
  ~LivingChild() {
    ::close(end_);
    EXPECT_EQ(::waitpid(child_, nullptr, 0), child_);
  }

 private:
  pid_t child_ = -1;
  int end_ = -1;
};

TEST_F(ForkedEngineTest, AChildThatLivesHoldsNothing) {
  const LivingChild child;
  ASSERT_TRUE(engine_->Commit("one").ok());
  engine_.reset();
  const auto again = Engine::Open({.store = {folder_ / "s"},
                                   .mode = OpenMode::kOpenOrCreate,
                                   .device_bytes = kMiB,
                                   .pinned_bytes = kMiB});
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ((*again)->CommitNumber(), 1u);
}

TEST_F(ForkedEngineTest, AChildMayOpenAnEngineOfItsOwn) {
#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
  GTEST_SKIP() << "the thread sanitizer allows no threads after a fork";
#endif
#endif
  const int wrong = InChild([this] {
    const auto own =
        Engine::Open({.store = {folder_ / "own"}, .device_bytes = kMiB, .pinned_bytes = kMiB});
    if (!own.ok()) return 1;
    const auto id = (*own)->Register({.name = "w", .shape = {4}});
    if (!id.ok() || !(*own)->Acquire(*id, Access::kRead).ok()) return 2;
    return (*own)->Commit("own").ok() ? 0 : 3;
  });
  EXPECT_EQ(wrong, 0);
}

}  // namespace
}  // namespace spillway
