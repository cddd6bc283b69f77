// SPDX-License-Identifier: Apache-2.0
//
// The part of the IoEngine conformance suite that tests short transfers and errors from the kernel.
// io_engine_conformance_test.cc is the other part.

#include <sys/mount.h>

#include <atomic>
#include <cerrno>
#include <mutex>

#include "tests/io/io_engine_conformance.h"

namespace spillway::io {
namespace {

using testing::HasSubstr;

constexpr size_t kKiB = 1024;
constexpr size_t kMiB = 1024 * kKiB;

class IoEngineFailure : public IoEngineConformance {};

TEST_P(IoEngineFailure, AFileMustBeOpen) {
  EXPECT_EQ(Make()->AddFile(-1, "nowhere", 0).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Make()->AddFile(1 << 20, "nowhere", 0).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_P(IoEngineFailure, ARequestOnAnUnknownFileFailsAlone) {
  const DirectFile file = NamelessFile();
  const auto engine = Make();
  const FileId id = Add(*engine, file);
  const DirectFile removed = NamelessFile();
  const FileId removed_id = Add(*engine, removed);
  ASSERT_TRUE(engine->RemoveFile(removed_id).ok());
  EXPECT_EQ(engine->RemoveFile(removed_id).code(), absl::StatusCode::kNotFound);

  const AlignedBuffer memory(kIoAlignment);
  const IoRequest requests[] = {{IoOp::kWrite, removed_id, 0, memory.data(), kIoAlignment, 0},
                                {IoOp::kWrite, id, 0, memory.data(), kIoAlignment, 1},
                                {IoOp::kRead, FileId{77}, 0, memory.data(), kIoAlignment, 2},
                                {IoOp::kRead, FileId{}, 0, memory.data(), kIoAlignment, 3}};
  engine->Submit(requests);
  const std::vector<IoCompletion> done = ReapAll(*engine);
  EXPECT_EQ(done.size(), 4u);
  for (const IoCompletion& completion : done) {
    EXPECT_EQ(completion.status.ok(), completion.tag == 1) << completion.tag << completion.status;
  }
}

TEST_P(IoEngineFailure, ARequestThatBreaksTheRulesFailsAlone) {
  const DirectFile file = NamelessFile();
  const auto engine = Make();
  const FileId id = Add(*engine, file);
  const AlignedBuffer memory(2 * kIoAlignment);
  const IoRequest requests[] = {{IoOp::kWrite, id, 0, memory.data(), kIoAlignment, 0},
                                {IoOp::kWrite, id, 512, memory.data(), kIoAlignment, 1},
                                {IoOp::kWrite, id, 0, memory.data() + 8, kIoAlignment, 2},
                                {IoOp::kWrite, id, 0, memory.data(), 100, 3},
                                {IoOp::kWrite, id, 0, memory.data(), 0, 4},
                                {IoOp::kWrite, id, 0, nullptr, kIoAlignment, 5}};
  engine->Submit(requests);
  const std::vector<IoCompletion> done = ReapAll(*engine);
  EXPECT_EQ(done.size(), 6u);
  for (const IoCompletion& completion : done) {
    const auto expected =
        completion.tag == 0 ? absl::StatusCode::kOk : absl::StatusCode::kInvalidArgument;
    EXPECT_EQ(completion.status.code(), expected) << completion.tag << completion.status;
  }
}

TEST_P(IoEngineFailure, AnErrorNamesOperationFileAndOffset) {
  const DirectFile file = NamelessFile();
  const std::string again = absl::StrCat("/proc/self/fd/", file.fd());
  const absl::StatusOr<DirectFile> read_only = OpenDirect(again, O_RDONLY);
  ASSERT_TRUE(read_only.ok()) << read_only.status();
  const auto engine = Make();
  const FileId id = *engine->AddFile(read_only->fd(), "folder/segment-0007", 0);
  const AlignedBuffer memory(kIoAlignment);
  const absl::Status status =
      Transact(*engine, {IoOp::kWrite, id, 12288, memory.data(), kIoAlignment, 1});
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.message(),
              HasSubstr("write of 4096 B at offset 12288 of folder/segment-0007"));
}

TEST_P(IoEngineFailure, AReadPastTheEndIsDataLoss) {
  const DirectFile file = NamelessFile();
  const auto engine = Make();
  const FileId id = Add(*engine, file);
  const AlignedBuffer memory(16 * kIoAlignment);
  // The file ends at a block boundary, inside a later block, or inside the first block.
  for (const off_t end : {8192, 8192 + 700, 700}) {
    ASSERT_EQ(0, ::ftruncate(file.fd(), end));
    for (const uint64_t offset : {uint64_t{0}, 4 * kIoAlignment}) {
      const absl::Status status =
          Transact(*engine, {IoOp::kRead, id, offset, memory.data(), 4 * kIoAlignment, 1});
      EXPECT_EQ(status.code(), absl::StatusCode::kDataLoss)
          << end << " " << offset << " " << status;
    }
  }
  ASSERT_EQ(0, ::ftruncate(file.fd(), 8192));
  EXPECT_TRUE(Transact(*engine, {IoOp::kRead, id, 0, memory.data(), 8192, 1}).ok());
}

TEST_P(IoEngineFailure, AFullDeviceIsResourceExhausted) {
  const absl::StatusOr<DirectFile> full = OpenDirect("/dev/full", O_RDWR);
  ASSERT_TRUE(full.ok()) << full.status();
  const auto engine = Make();
  const FileId id = Add(*engine, *full);
  const AlignedBuffer memory(kIoAlignment);
  const absl::Status status =
      Transact(*engine, {IoOp::kWrite, id, 0, memory.data(), kIoAlignment, 1});
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
}

// Opens a file on a tmpfs of 1 MiB that is mounted in no folder and disappears with the file's
// descriptor. Returns -1 if that is not permitted.
int OpenFileOnSmallFileSystem() {
  const int context = ::fsopen("tmpfs", FSOPEN_CLOEXEC);
  if (context < 0) return -1;
  ::fsconfig(context, FSCONFIG_SET_STRING, "size", "1048576", 0);
  ::fsconfig(context, FSCONFIG_CMD_CREATE, nullptr, nullptr, 0);
  const int mount = ::fsmount(context, FSMOUNT_CLOEXEC, 0);
  ::close(context);
  if (mount < 0) return -1;
  const int fd = ::openat(mount, "file", O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  ::close(mount);
  return fd;
}

TEST_P(IoEngineFailure, AWriteThatFillsTheFileSystemHalfWayIsResourceExhausted) {
  const DirectFile file(OpenFileOnSmallFileSystem(), /*is_direct=*/false, "small/file");
  if (file.fd() < 0) GTEST_SKIP() << "mounting a tmpfs is not permitted";
  const auto engine = Make();
  const FileId id = Add(*engine, file);
  const AlignedBuffer memory(2 * kMiB);
  const absl::Status status = Transact(*engine, {IoOp::kWrite, id, 0, memory.data(), 2 * kMiB, 1});
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  // The cause is gone, so the same engine and file work again.
  ASSERT_EQ(0, ::ftruncate(file.fd(), 0));
  EXPECT_TRUE(Transact(*engine, {IoOp::kWrite, id, 0, memory.data(), 512 * kKiB, 2}).ok());
}

// Shortens one result for each of the given cuts, and spoils the bytes behind the cut as if the
// kernel had never moved them. An engine that does not resume the transfer leaves spoiled bytes.
class Cutter {
 public:
  Cutter(int fd, std::vector<int64_t> cuts) : fd_(fd), cuts_(std::move(cuts)) {}

  ResultHook hook() {
    return [this](const IoRequest& request, int64_t result) { return Cut(request, result); };
  }

 private:
  int64_t Cut(const IoRequest& request, int64_t result) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (result <= 0 || next_ == cuts_.size() || result <= cuts_[next_]) return result;
    const int64_t cut = cuts_[next_++];
    // The piece ends where the request does; only whole blocks behind the cut are spoiled.
    const uint64_t piece = request.size_bytes - static_cast<uint64_t>(result);
    const uint64_t kept = piece + static_cast<uint64_t>(cut) / kIoAlignment * kIoAlignment;
    if (request.op == IoOp::kRead) {
      std::memset(request.buffer + kept, 0xee, request.size_bytes - kept);
    } else {
      const AlignedBuffer garbage(request.size_bytes - kept);
      const auto offset = static_cast<off_t>(request.offset + kept);
      EXPECT_EQ(::pwrite(fd_, garbage.data(), garbage.size(), offset),
                static_cast<ssize_t>(garbage.size()));
    }
    return cut;
  }

  const int fd_;
  const std::vector<int64_t> cuts_;
  std::mutex mutex_;
  size_t next_ = 0;
};

TEST_P(IoEngineFailure, ShortTransfersAreResumed) {
  constexpr uint32_t kSize = 256 * kKiB;
  // Aligned and unaligned counts, some of them less than a block, which move no block.
  const std::vector<int64_t> cuts = {4096, 5000, 100, 4095, 1, 65536, 70001, 8192};
  const DirectFile file = NamelessFile();
  for (const bool registered : {false, true}) {
    SCOPED_TRACE(registered);
    const AlignedBuffer out(kSize);
    FillPattern(out.span(), registered ? 1 : 2);
    Cutter cut_write(file.fd(), cuts);
    Cutter cut_read(file.fd(), cuts);
    const auto writer = Make({.result_hook = cut_write.hook()});
    const auto reader = Make({.result_hook = cut_read.hook()});
    const AlignedBuffer in(kSize);
    if (registered) {
      writer->AddBuffer(out.span());
      reader->AddBuffer(in.span());
    }
    const FileId to = Add(*writer, file);
    ASSERT_TRUE(Transact(*writer, {IoOp::kWrite, to, 4096, out.data(), kSize, 1}).ok());
    const FileId from = Add(*reader, file);
    ASSERT_TRUE(Transact(*reader, {IoOp::kRead, from, 4096, in.data(), kSize, 2}).ok());
    EXPECT_EQ(0, std::memcmp(in.data(), out.data(), kSize));
  }
}

TEST_P(IoEngineFailure, InterruptionsAreTriedAgainAndNotForEver) {
  const DirectFile file = NamelessFile();
  const AlignedBuffer memory(kIoAlignment);
  for (const int error : {EINTR, EAGAIN}) {
    for (const int times : {3, 1'000'000}) {
      std::atomic<int> left = times;
      const auto engine = Make({.result_hook = [&](const IoRequest&, int64_t result) {
        return left-- > 0 ? int64_t{-error} : result;
      }});
      const FileId id = Add(*engine, file);
      const absl::Status status =
          Transact(*engine, {IoOp::kWrite, id, 0, memory.data(), kIoAlignment, 1});
      EXPECT_EQ(status.ok(), times == 3) << status;
    }
  }
}

TEST_P(IoEngineFailure, EveryResultIsRead) {
  const DirectFile file = NamelessFile();
  std::atomic<int> results = 0;
  // Every third result is an error.
  const auto engine = Make({.queue_depth = 4, .result_hook = [&](const IoRequest&, int64_t result) {
                              return results++ % 3 == 2 ? int64_t{-EIO} : result;
                            }});
  const FileId id = Add(*engine, file);
  const AlignedBuffer memory(30 * kIoAlignment);
  std::vector<IoRequest> requests;
  for (uint64_t i = 0; i < 30; ++i) {
    std::byte* block = memory.data() + i * kIoAlignment;
    requests.push_back({IoOp::kWrite, id, i * kIoAlignment, block, kIoAlignment, i});
  }
  engine->Submit(requests);
  int failed = 0;
  for (const IoCompletion& completion : ReapAll(*engine)) failed += completion.status.ok() ? 0 : 1;
  EXPECT_EQ(failed, 10);
}

SPILLWAY_INSTANTIATE_FOR_ALL_IO_ENGINES(IoEngineFailure);

}  // namespace
}  // namespace spillway::io
