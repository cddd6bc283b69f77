// SPDX-License-Identifier: Apache-2.0

#include "io/store/page_verifier.h"

#include <span>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "io/checksum.h"

namespace spillway::io {
namespace {

// Enough to keep every drive busy. A larger extent is read alone.
constexpr uint64_t kMaxUnderWayBytes = uint64_t{64} << 20;
constexpr size_t kMaxUnderWay = 64;

}  // namespace

PageVerifier::Buffer PageVerifier::TakeBuffer(uint32_t size_bytes) {
  if (const auto spare = spare_.find(size_bytes); spare != spare_.end()) {
    Buffer buffer = std::move(spare->second);
    spare_.erase(spare);
    return buffer;
  }
  spare_.clear();  // buffers of other sizes: extents of one size come together
  return Buffer(static_cast<std::byte*>(std::aligned_alloc(kIoAlignment, size_bytes)));
}

absl::Status PageVerifier::Add(FileId file, const Extent& extent, std::vector<Page> pages) {
  while (!reads_.empty() && (under_way_bytes_ + extent.size_bytes > kMaxUnderWayBytes ||
                             reads_.size() >= kMaxUnderWay)) {
    Reap();
  }
  const uint64_t tag = next_++;
  Read& read = reads_[tag];
  read.buffer = TakeBuffer(extent.size_bytes);
  if (read.buffer == nullptr) {
    reads_.erase(tag);
    return absl::ResourceExhaustedError(absl::StrFormat(
        "no memory to read an extent of %d bytes: free some, or raise the limit ('ulimit -v')",
        extent.size_bytes));
  }
  read.extent = extent;
  read.pages = std::move(pages);
  read.request = {.op = IoOp::kRead,
                  .file = file,
                  .offset = extent.offset,
                  .buffer = read.buffer.get(),
                  .size_bytes = extent.size_bytes,
                  .tag = tag};
  under_way_bytes_ += extent.size_bytes;
  io_->Submit({&read.request, 1});
  return status_;
}

absl::Status PageVerifier::Finish() {
  while (!reads_.empty()) Reap();
  spare_.clear();
  return status_;
}

void PageVerifier::Reap() {
  std::vector<IoCompletion> done;
  io_->Reap(absl::InfiniteDuration(), &done);
  for (const IoCompletion& completion : done) OnRead(completion);
}

void PageVerifier::OnRead(const IoCompletion& completion) {
  const auto found = reads_.find(completion.tag);
  Read& read = found->second;
  std::vector<std::pair<const Page*, absl::Status>> bad;
  for (const Page& page : read.pages) {
    absl::Status status = completion.status;
    if (status.ok()) {
      const uint64_t got =
          Checksum(std::span<const std::byte>(read.buffer.get(), read.request.size_bytes)
                       .subspan(page.skip_bytes, page.content_bytes));
      if (got != page.checksum) {
        status = absl::DataLossError(absl::StrFormat(
            "its %d bytes have the checksum %016x, not %016x: they are not what was written",
            page.content_bytes, got, page.checksum));
      }
    }
    if (!status.ok()) bad.emplace_back(&page, std::move(status));
  }
  if (!bad.empty() && !std::exchange(read.is_second, true)) {
    io_->Submit({&read.request, 1});  // reads it once more from the device
    return;
  }
  for (const auto& [page, why] : bad) {
    if (absl::IsDataLoss(why) || absl::IsUnavailable(why)) {
      on_bad_(read.extent, *page, why);
    } else {
      status_.Update(why);
    }
  }
  under_way_bytes_ -= read.request.size_bytes;
  read_bytes_ += read.request.size_bytes;
  spare_.emplace(read.request.size_bytes, std::move(read.buffer));
  reads_.erase(found);
}

}  // namespace spillway::io
