// SPDX-License-Identifier: Apache-2.0
//
// The conformance tests of IoEngine without failures: bytes arrive, each completion is reported
// once, waits end. io_engine_failure_test.cc tests failures.

#include "tests/io/io_engine_conformance.h"

#include <atomic>
#include <map>
#include <random>
#include <set>
#include <thread>

#include "tests/seed.h"

namespace spillway::io {
namespace {

constexpr size_t kKiB = 1024;
constexpr size_t kMiB = 1024 * kKiB;

TEST_P(IoEngineConformance, NamesWhatItRunsOn) {
  EXPECT_EQ(Make()->name(), GetParam().kind == IoKind::kUring ? "uring" : "posix");
}

TEST_P(IoEngineConformance, ReadsBackWhatItWrote) {
  const DirectFile file = NamelessFile();
  for (const bool registered : {false, true}) {
    const auto engine = Make();
    const FileId id = Add(*engine, file);
    uint64_t tag = 0;
    for (const size_t size :
         {4 * kKiB, 8 * kKiB, 64 * kKiB, kMiB, 4 * kMiB + 4 * kKiB, 16 * kMiB}) {
      SCOPED_TRACE(absl::StrCat(size, " B, registered ", registered));
      const AlignedBuffer out(size);
      const AlignedBuffer in(size);
      if (registered) {
        engine->AddBuffer(out.span());
        engine->AddBuffer(in.span());
      }
      FillPattern(out.span(), ++tag);
      const auto size_bytes = static_cast<uint32_t>(size);
      ASSERT_TRUE(Transact(*engine, {IoOp::kWrite, id, 8192, out.data(), size_bytes, tag}).ok());
      ASSERT_TRUE(Transact(*engine, {IoOp::kRead, id, 8192, in.data(), size_bytes, tag}).ok());
      EXPECT_TRUE(HasPattern(in.span(), tag));
      engine->RemoveBuffers();
    }
  }
}

TEST_P(IoEngineConformance, UsesAPartOfARegisteredBufferAndMemoryAcrossTwo) {
  const DirectFile file = NamelessFile();
  const auto engine = Make();
  const FileId id = Add(*engine, file);
  const AlignedBuffer memory(64 * kKiB);
  engine->AddBuffer(memory.span().first(32 * kKiB));
  engine->AddBuffer(memory.span().last(32 * kKiB));
  FillPattern(memory.span(), 5);
  // The range from 24 to 40 KiB spans both buffers; 8 to 12 KiB lies inside the first.
  ASSERT_TRUE(
      Transact(*engine, {IoOp::kWrite, id, 0, memory.data() + 24 * kKiB, 16 * kKiB, 1}).ok());
  ASSERT_TRUE(
      Transact(*engine, {IoOp::kWrite, id, 16 * kKiB, memory.data() + 8 * kKiB, 4 * kKiB, 2}).ok());
  const AlignedBuffer in(20 * kKiB);
  ASSERT_TRUE(Transact(*engine, {IoOp::kRead, id, 0, in.data(), 20 * kKiB, 3}).ok());
  EXPECT_EQ(0, std::memcmp(in.data(), memory.data() + 24 * kKiB, 16 * kKiB));
  EXPECT_EQ(0, std::memcmp(in.data() + 16 * kKiB, memory.data() + 8 * kKiB, 4 * kKiB));
}

// Two thousand writes wait when the read is submitted. In order of arrival it would end last.
TEST_P(IoEngineConformance, AReadPassesWritesThatWait) {
  constexpr uint64_t kWrites = 2000;
  const DirectFile file = NamelessFile();
  const auto engine = Make();
  const FileId id = Add(*engine, file);
  const AlignedBuffer memory(2 * kIoAlignment);
  ASSERT_TRUE(Transact(*engine, {IoOp::kWrite, id, 0, memory.data(), kIoAlignment, 1}).ok());
  engine->SetDepths(0, {.read = 1, .write = 1, .mixed_write = 1});
  const std::vector<IoRequest> writes(
      kWrites, {IoOp::kWrite, id, kIoAlignment, memory.data(), kIoAlignment, 1});
  engine->Submit(writes);
  const IoRequest read = {IoOp::kRead, id, 0, memory.data() + kIoAlignment, kIoAlignment, 2};
  engine->Submit({&read, 1});
  const std::vector<IoCompletion> done = ReapAll(*engine);
  ASSERT_EQ(done.size(), kWrites + 1);
  const auto ended = std::find_if(
      done.begin(), done.end(), [](const IoCompletion& completion) { return completion.tag == 2; });
  ASSERT_NE(ended, done.end());
  EXPECT_LT(ended - done.begin(), static_cast<ptrdiff_t>(kWrites / 2));
}

TEST_P(IoEngineConformance, DevicesHaveQueuesOfTheirOwn) {
  const auto engine = Make();
  const DirectFile files[] = {NamelessFile(), NamelessFile(), NamelessFile()};
  const AlignedBuffer memory(3 * 16 * kIoAlignment);
  engine->SetDepths(1, {.read = 1, .write = 1, .mixed_write = 1});
  engine->SetDepths(2, {.read = 5000, .write = 0, .mixed_write = -1});
  std::vector<FileId> ids;
  for (uint16_t device = 0; device < 3; ++device) {
    ids.push_back(*engine->AddFile(files[device].fd(), files[device].path(), device));
  }
  for (const IoOp op : {IoOp::kWrite, IoOp::kRead}) {
    std::vector<IoRequest> requests;
    for (uint64_t i = 0; i < 3 * 16; ++i) {
      std::byte* block = memory.data() + i * kIoAlignment;
      if (op == IoOp::kWrite) FillPattern({block, kIoAlignment}, i);
      requests.push_back({op, ids[i % 3], i / 3 * kIoAlignment, block, kIoAlignment, i});
    }
    if (op == IoOp::kRead) std::memset(memory.data(), 0, memory.size());
    engine->Submit(requests);
    for (const IoCompletion& completion : ReapAll(*engine)) {
      EXPECT_TRUE(completion.status.ok()) << completion.status;
    }
  }
  for (uint64_t i = 0; i < 3 * 16; ++i) {
    EXPECT_TRUE(HasPattern(memory.span().subspan(i * kIoAlignment, kIoAlignment), i)) << i;
  }
}

TEST_P(IoEngineConformance, CompletesEachRequestOnceAtAnyDepth) {
  constexpr uint64_t kRequests = 300;
  const DirectFile file = NamelessFile();
  for (const int depth : {1, 2, 7, 64, kMaxQueueDepth}) {
    SCOPED_TRACE(depth);
    const auto engine = Make({.queue_depth = depth});
    const FileId id = Add(*engine, file);
    const AlignedBuffer memory(kRequests * kIoAlignment);
    for (const IoOp op : {IoOp::kWrite, IoOp::kRead}) {
      std::vector<IoRequest> requests;
      for (uint64_t i = 0; i < kRequests; ++i) {
        std::byte* block = memory.data() + i * kIoAlignment;
        if (op == IoOp::kWrite) FillPattern({block, kIoAlignment}, i);
        requests.push_back({op, id, (kRequests - 1 - i) * kIoAlignment, block, kIoAlignment, i});
      }
      if (op == IoOp::kRead) std::memset(memory.data(), 0, memory.size());
      engine->Submit(requests);
      EXPECT_EQ(engine->in_flight(), static_cast<int>(kRequests));
      std::set<uint64_t> tags;
      for (const IoCompletion& completion : ReapAll(*engine)) {
        EXPECT_TRUE(completion.status.ok()) << completion.status;
        EXPECT_TRUE(tags.insert(completion.tag).second) << completion.tag;
      }
      EXPECT_EQ(tags.size(), kRequests);
    }
    for (uint64_t i = 0; i < kRequests; ++i) {
      EXPECT_TRUE(HasPattern(memory.span().subspan(i * kIoAlignment, kIoAlignment), i));
    }
  }
}

TEST_P(IoEngineConformance, KeepsManyFilesApart) {
  constexpr uint64_t kFiles = 300;  // more than the ring's table of registered files
  const auto engine = Make();
  std::vector<DirectFile> files;
  std::vector<FileId> ids;
  const AlignedBuffer memory(kFiles * kIoAlignment);
  std::vector<IoRequest> requests;
  for (uint64_t i = 0; i < kFiles; ++i) {
    files.push_back(NamelessFile());
    ids.push_back(Add(*engine, files.back()));
    std::byte* block = memory.data() + i * kIoAlignment;
    FillPattern({block, kIoAlignment}, i);
    requests.push_back({IoOp::kWrite, ids.back(), 0, block, kIoAlignment, i});
  }
  engine->Submit(requests);
  for (const IoCompletion& completion : ReapAll(*engine)) EXPECT_TRUE(completion.status.ok());
  const AlignedBuffer in(kIoAlignment);
  for (uint64_t i = 0; i < kFiles; ++i) {
    ASSERT_TRUE(Transact(*engine, {IoOp::kRead, ids[i], 0, in.data(), kIoAlignment, i}).ok());
    EXPECT_TRUE(HasPattern(in.span(), i)) << i;
  }
}

TEST_P(IoEngineConformance, TakesFilesAndBuffersAfterItStarted) {
  const auto engine = Make();
  const DirectFile first = NamelessFile();
  const FileId first_id = Add(*engine, first);
  const AlignedBuffer memory(3 * kIoAlignment);
  FillPattern(memory.span().first(kIoAlignment), 1);
  FillPattern(memory.span().subspan(kIoAlignment, kIoAlignment), 2);
  ASSERT_TRUE(Transact(*engine, {IoOp::kWrite, first_id, 0, memory.data(), kIoAlignment, 1}).ok());

  // A removed file's id may be reused for another file.
  ASSERT_TRUE(engine->RemoveFile(first_id).ok());
  const DirectFile second = NamelessFile();
  const FileId second_id = Add(*engine, second);
  engine->AddBuffer(memory.span());
  std::byte* block = memory.data() + kIoAlignment;
  ASSERT_TRUE(Transact(*engine, {IoOp::kWrite, second_id, 0, block, kIoAlignment, 2}).ok());
  const FileId again = Add(*engine, first);
  std::byte* in = memory.data() + 2 * kIoAlignment;
  ASSERT_TRUE(Transact(*engine, {IoOp::kRead, again, 0, in, kIoAlignment, 3}).ok());
  EXPECT_TRUE(HasPattern({in, kIoAlignment}, 1));
  ASSERT_TRUE(Transact(*engine, {IoOp::kRead, second_id, 0, in, kIoAlignment, 4}).ok());
  EXPECT_TRUE(HasPattern({in, kIoAlignment}, 2));
}

TEST_P(IoEngineConformance, WakeFromAnotherThreadEndsAWait) {
  const auto engine = Make();
  for (int i = 0; i < 20; ++i) {
    std::thread waker([&] { engine->Wake(); });
    std::vector<IoCompletion> done;
    engine->Reap(absl::InfiniteDuration(), &done);  // hangs if the wake-up is lost
    EXPECT_TRUE(done.empty());
    waker.join();
  }
}

TEST_P(IoEngineConformance, WakeBeforeReapEndsTheNextOne) {
  const auto engine = Make();
  std::vector<IoCompletion> done;
  engine->Wake();
  engine->Reap(absl::InfiniteDuration(), &done);
  engine->Wake();
  engine->Wake();
  engine->Reap(absl::InfiniteDuration(), &done);
  EXPECT_TRUE(done.empty());
}

TEST_P(IoEngineConformance, CompletionsComeAmidWakeUps) {
  const DirectFile file = NamelessFile();
  const auto engine = Make();
  const FileId id = Add(*engine, file);
  const AlignedBuffer memory(kIoAlignment);
  std::atomic<bool> stop = false;
  std::thread waker([&] {
    while (!stop) engine->Wake();
  });
  for (uint64_t tag = 0; tag < 200; ++tag) {
    const absl::Status status =
        Transact(*engine, {IoOp::kWrite, id, 0, memory.data(), kIoAlignment, tag});
    EXPECT_TRUE(status.ok()) << status;
  }
  stop = true;
  waker.join();
}

TEST_P(IoEngineConformance, AWaitWithNothingInFlightTimesOut) {
  const auto engine = Make();
  std::vector<IoCompletion> done;
  for (const absl::Duration timeout :
       {absl::ZeroDuration(), -absl::Seconds(1), absl::Milliseconds(5)}) {
    engine->Reap(timeout, &done);
  }
  EXPECT_TRUE(done.empty());
}

TEST_P(IoEngineConformance, PollingFindsTheCompletion) {
  const DirectFile file = NamelessFile();
  const auto engine = Make();
  const FileId id = Add(*engine, file);
  const AlignedBuffer memory(kIoAlignment);
  const IoRequest request = {IoOp::kWrite, id, 0, memory.data(), kIoAlignment, 9};
  engine->Submit({&request, 1});
  std::vector<IoCompletion> done;
  while (done.empty()) engine->Reap(absl::ZeroDuration(), &done);
  EXPECT_EQ(done[0].tag, 9u);
  EXPECT_EQ(engine->in_flight(), 0);
}

TEST_P(IoEngineConformance, AnotherThreadMayTakeOverWhenNothingIsInFlight) {
  const DirectFile file = NamelessFile();
  const auto engine = Make();
  const FileId id = Add(*engine, file);
  const AlignedBuffer memory(2 * kIoAlignment);
  engine->AddBuffer(memory.span());
  FillPattern(memory.span().first(kIoAlignment), 3);
  std::byte* in = memory.data() + kIoAlignment;
  ASSERT_TRUE(Transact(*engine, {IoOp::kWrite, id, 0, memory.data(), kIoAlignment, 1}).ok());
  std::thread([&] {
    EXPECT_TRUE(Transact(*engine, {IoOp::kRead, id, 0, in, kIoAlignment, 2}).ok());
  }).join();
  EXPECT_TRUE(HasPattern({in, kIoAlignment}, 3));
  EXPECT_EQ(engine->unregistered_buffers(), 0);

  // The first thread takes over again. Its first calls add a file and remove the buffer.
  const DirectFile other = NamelessFile();
  const FileId other_id = Add(*engine, other);
  engine->RemoveBuffers();
  EXPECT_TRUE(Transact(*engine, {IoOp::kWrite, other_id, 0, memory.data(), kIoAlignment, 3}).ok());
  EXPECT_TRUE(Transact(*engine, {IoOp::kRead, id, 0, in, kIoAlignment, 4}).ok());
}

// Checks that nothing writes into the buffers after the engine is destroyed.
void ExpectUntouched(const AlignedBuffer& memory) {
  std::memset(memory.data(), 0x11, memory.size());
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  const auto untouched = [](std::byte byte) { return byte == std::byte{0x11}; };
  EXPECT_TRUE(std::all_of(memory.data(), memory.data() + memory.size(), untouched));
}

std::vector<IoRequest> Reads(FileId file, const AlignedBuffer& memory) {
  std::vector<IoRequest> requests;
  for (uint64_t offset = 0; offset < memory.size(); offset += 64 * kKiB) {
    requests.push_back({IoOp::kRead, file, offset, memory.data() + offset, 64 * kKiB, offset});
  }
  return requests;
}

TEST_P(IoEngineConformance, DestructionWaitsForWhatIsInFlight) {
  const DirectFile file = NamelessFile();
  const AlignedBuffer memory(16 * kMiB);
  auto engine = Make({.queue_depth = 8});
  const FileId id = Add(*engine, file);
  ASSERT_TRUE(Transact(*engine, {IoOp::kWrite, id, 0, memory.data(), 16 * kMiB, 1}).ok());
  engine->Submit(Reads(id, memory));
  engine.reset();
  ExpectUntouched(memory);
}

TEST_P(IoEngineConformance, DestructionElsewhereAfterTheUsingThreadEnded) {
  const DirectFile file = NamelessFile();
  const AlignedBuffer memory(16 * kMiB);
  auto engine = Make({.queue_depth = 64});
  std::thread([&] {
    const FileId id = Add(*engine, file);
    EXPECT_TRUE(Transact(*engine, {IoOp::kWrite, id, 0, memory.data(), 16 * kMiB, 1}).ok());
    engine->Submit(Reads(id, memory));
  }).join();
  engine.reset();
  ExpectUntouched(memory);
}

// Runs random transfers. Every block must hold the pattern of the last write to it.
TEST_P(IoEngineConformance, ManyMixedTransfersKeepEveryBlock) {
  constexpr uint64_t kBlocks = 64;
  std::mt19937_64 random(test::Seed());
  const auto engine = Make({.queue_depth = 16});
  const DirectFile files[] = {NamelessFile(), NamelessFile(), NamelessFile()};
  const AlignedBuffer memory(kBlocks * 16 * kKiB);
  engine->AddBuffer(memory.span().first(memory.size() / 2));
  std::map<uint64_t, uint64_t> versions;  // the key of block b of file f is f * kBlocks + b
  std::vector<FileId> ids;
  for (const DirectFile& file : files) ids.push_back(Add(*engine, file));

  for (uint64_t round = 1; round <= 30; ++round) {
    // Each round uses each block of one file once, for a write or for a read of its content.
    std::vector<IoRequest> requests;
    const uint64_t f = random() % 3;
    for (uint64_t block = 0; block < kBlocks; ++block) {
      const uint64_t key = f * kBlocks + block;
      std::byte* at = memory.data() + block * 16 * kKiB;
      const bool write = versions[key] == 0 || random() % 2 == 0;
      if (write) FillPattern({at, 16 * kKiB}, versions[key] = round * 1000 + block);
      const IoOp op = write ? IoOp::kWrite : IoOp::kRead;
      requests.push_back({op, ids[f], block * 16 * kKiB, at, 16 * kKiB, block});
    }
    std::shuffle(requests.begin(), requests.end(), random);
    engine->Submit(requests);
    for (const IoCompletion& completion : ReapAll(*engine)) {
      ASSERT_TRUE(completion.status.ok()) << completion.status;
    }
    for (uint64_t block = 0; block < kBlocks; ++block) {
      const auto bytes = memory.span().subspan(block * 16 * kKiB, 16 * kKiB);
      ASSERT_TRUE(HasPattern(bytes, versions[f * kBlocks + block]))
          << "round " << round << " block " << block;
    }
  }
}

SPILLWAY_INSTANTIATE_FOR_ALL_IO_ENGINES(IoEngineConformance);

}  // namespace
}  // namespace spillway::io
