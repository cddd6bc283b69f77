// SPDX-License-Identifier: Apache-2.0
//
// Tests what only this engine has: a number of threads. The conformance suite tests the rest.

#include "io/posix_io_engine.h"

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "gtest/gtest.h"
#include "tests/io/io_test_util.h"

namespace spillway::io {
namespace {

TEST(PosixIoEngine, IsNeverInMoreTransfersThanItsDepthOrEight) {
  const DirectFile file = NamelessFile();
  const AlignedBuffer memory(64 * kIoAlignment);
  for (const int depth : {1, 2, 8, 100}) {
    std::atomic<int> inside = 0;
    std::atomic<int> most = 0;
    const auto hook = [&](const IoRequest&, int64_t result) {
      const int now = ++inside;
      int seen = most;
      while (now > seen && !most.compare_exchange_weak(seen, now)) {
      }
      std::this_thread::sleep_for(std::chrono::microseconds(200));
      --inside;
      return result;
    };
    const auto engine = *PosixIoEngine::Create({.queue_depth = depth, .result_hook = hook});
    const FileId id = *engine->AddFile(file.fd(), "file", 0);
    std::vector<IoRequest> requests;
    for (uint64_t i = 0; i < 64; ++i) {
      std::byte* block = memory.data() + i * kIoAlignment;
      requests.push_back({IoOp::kWrite, id, i * kIoAlignment, block, kIoAlignment, i});
    }
    engine->Submit(requests);
    EXPECT_EQ(ReapAll(*engine).size(), 64u);
    EXPECT_LE(most, std::min(depth, 8));
  }
}

// The one thread is idle when both requests arrive. It can take only one of them.
TEST(PosixIoEngine, ARequestDoesNotWaitForOneThatHangsOnAnotherDevice) {
  const DirectFile file = NamelessFile();
  ASSERT_EQ(::ftruncate(file.fd(), kIoAlignment), 0);
  const AlignedBuffer memory(3 * kIoAlignment);
  for (int round = 0; round < 50; ++round) {
    std::promise<void> latch;
    const auto hook = [opened = latch.get_future().share()](const IoRequest& request,
                                                            int64_t result) {
      if (request.tag == 1) opened.wait();
      return result;
    };
    const auto engine = *PosixIoEngine::Create({.result_hook = hook});
    const FileId hanging = *engine->AddFile(file.fd(), "hanging", 0);
    const FileId other = *engine->AddFile(file.fd(), "other", 1);
    const auto submit = [&](FileId id, uint64_t tag) {
      std::byte* const block = memory.data() + tag * kIoAlignment;
      const IoRequest request = {IoOp::kRead, id, 0, block, kIoAlignment, tag};
      engine->Submit({&request, 1});
    };
    std::vector<IoCompletion> done;
    submit(hanging, 0);
    while (done.empty()) engine->Reap(absl::InfiniteDuration(), &done);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the thread becomes idle
    done.clear();
    submit(hanging, 1);
    submit(other, 2);
    engine->Reap(absl::Seconds(20), &done);
    latch.set_value();
    ASSERT_EQ(done.size(), 1u) << "round " << round;
    EXPECT_EQ(done[0].tag, 2u);
    ReapAll(*engine);
  }
}

TEST(PosixIoEngine, WithOneThreadCompletesInOrder) {
  const DirectFile file = NamelessFile();
  const AlignedBuffer memory(kIoAlignment);
  const auto engine = *PosixIoEngine::Create({.queue_depth = 1});
  const FileId id = *engine->AddFile(file.fd(), "file", 0);
  std::vector<IoRequest> requests;
  for (uint64_t i = 0; i < 50; ++i) {
    requests.push_back({IoOp::kWrite, id, (50 - i) * kIoAlignment, memory.data(), kIoAlignment, i});
  }
  engine->Submit(requests);
  uint64_t next = 0;
  for (const IoCompletion& completion : ReapAll(*engine)) EXPECT_EQ(completion.tag, next++);
}

}  // namespace
}  // namespace spillway::io
