// SPDX-License-Identifier: Apache-2.0
//
// Tests what only this engine has: a number of threads. The conformance suite tests the rest.

#include "io/posix_io_engine.h"

#include <atomic>
#include <chrono>
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
