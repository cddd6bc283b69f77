// SPDX-License-Identifier: Apache-2.0
//
// Tests when PageIo's other threads hash: they must take none of the processors' time while the
// devices limit, and share the work when hashing limits. The engine here hands out completions in
// the numbers that a test wants, so no result depends on how fast anything is.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/make_io_engine.h"
#include "io/store/page_io.h"
#include "tests/io/io_test_util.h"
#include "tests/temp_folder.h"

namespace spillway::io {
namespace {

constexpr uint64_t kPageBytes = 64 * 1024;
constexpr uint64_t kPages = 32;

// Passes everything on to an engine. Lets all its requests end, and then hands out at most
// `most_at_once` completions a call.
class SteppedIoEngine final : public IoEngine {
 public:
  explicit SteppedIoEngine(std::unique_ptr<IoEngine> engine) : engine_(std::move(engine)) {}

  std::string_view name() const override { return engine_->name(); }
  absl::StatusOr<FileId> AddFile(int fd, std::string path, uint16_t device) override {
    return engine_->AddFile(fd, std::move(path), device);
  }
  absl::Status RemoveFile(FileId file) override { return engine_->RemoveFile(file); }
  void AddBuffer(std::span<std::byte> memory) override { engine_->AddBuffer(memory); }
  void RemoveBuffers() override { engine_->RemoveBuffers(); }
  int unregistered_buffers() const override { return engine_->unregistered_buffers(); }
  void SetDepths(uint16_t device, const QueueDepths& depths) override {
    engine_->SetDepths(device, depths);
  }
  void Submit(std::span<const IoRequest> requests) override { engine_->Submit(requests); }
  void Reap(absl::Duration timeout, std::vector<IoCompletion>* done) override {
    while (engine_->in_flight() > 0) engine_->Reap(absl::InfiniteDuration(), &ended_);
    if (ended_.empty()) engine_->Reap(timeout, &ended_);  // until a thread wakes the caller
    const auto end = ended_.begin() + static_cast<ptrdiff_t>(std::min(most_at_once, ended_.size()));
    done->insert(done->end(), ended_.begin(), end);
    ended_.erase(ended_.begin(), end);
  }
  void Wake() override { engine_->Wake(); }
  int in_flight() const override { return engine_->in_flight() + static_cast<int>(ended_.size()); }

  size_t most_at_once = 1;

 private:
  const std::unique_ptr<IoEngine> engine_;
  std::vector<IoCompletion> ended_;  // not handed out yet
};

// Reaps until no more than `left` operations are under way.
void ReapUntil(PageIo& pages, size_t left) {
  std::vector<PageIo::Result> results;
  while (pages.in_flight() > left) pages.Reap(absl::InfiniteDuration(), &results);
  for (const PageIo::Result& result : results) EXPECT_TRUE(result.status.ok()) << result.status;
}

TEST(HashSharing, OtherThreadsHashOnlyWhatTheDevicesDoNotLimit) {
  const test::TempFolder folder(test::FastPlace());
  SteppedIoEngine engine(*MakeIoEngine(IoKind::kPosix, {}, folder.path()));
  auto store = Store::Open(
      {.folders = {folder / "store"}, .scratch = true, .page_bytes = kPageBytes}, &engine);
  ASSERT_TRUE(store.ok()) << store.status();
  const TensorIndex tensor = *(*store)->AddTensor({"w", "{}", kPages}, false);
  PageIo pages(store->get(), &engine, {.hash_threads = 3});
  const AlignedBuffer memory(kPages * kPageBytes);
  FillPattern(memory.span(), 1);

  // One page is pending at a time.
  for (uint64_t page = 0; page < kPages; ++page) {
    pages.Write(page, tensor, page, kPageBytes, memory.data() + page * kPageBytes);
    ReapUntil(pages, 0);
  }
  EXPECT_EQ(pages.helper_pages(), 0u);

  const auto read_all = [&] {
    for (uint64_t page = 0; page < kPages; ++page)
      pages.Read(page, tensor, page, kPageBytes, memory.data() + page * kPageBytes);
  };
  read_all();
  engine.most_at_once = 2;
  ReapUntil(pages, kPages / 2);
  EXPECT_EQ(pages.helper_pages(), 0u) << "more bytes are on their way than wait for hashing";

  engine.most_at_once = kPages;
  ReapUntil(pages, 0);
  const uint64_t shared = pages.helper_pages();
  EXPECT_GT(shared, 0u) << "the rest arrived at once";

  read_all();
  engine.most_at_once = 2;
  ReapUntil(pages, kPages / 2);
  EXPECT_EQ(pages.helper_pages(), shared) << "the threads that were started must sleep again";
  engine.most_at_once = kPages;
  ReapUntil(pages, 0);
  EXPECT_TRUE(HasPattern(memory.span(), 1));
}

}  // namespace
}  // namespace spillway::io
