// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/capacity/page_queue.h"

#include <algorithm>
#include <optional>
#include <span>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "io/checksum.h"
#include "src/base/bytes.h"
#include "src/base/status_macros.h"
#include "tools/spillway/capacity/page_pattern.h"

namespace spillway::capacity {
namespace {

constexpr uint64_t kMemoryBytes = 64 * kMiB;  // more only if two pages need it
constexpr uint64_t kMostSlots = 64;

}  // namespace

PageQueue::PageQueue(io::Store* store, io::IoEngine* io, uint64_t seed)
    : store_(store), io_(io), seed_(seed), pages_(store, io) {}

absl::StatusOr<std::unique_ptr<PageQueue>> PageQueue::Create(io::Store* store, io::IoEngine* io,
                                                             uint64_t seed) {
  std::unique_ptr<PageQueue> queue(new PageQueue(store, io, seed));
  const uint64_t page_bytes = store->page_bytes();
  const uint64_t slots = std::clamp<uint64_t>(kMemoryBytes / page_bytes, 2, kMostSlots);
  queue->memory_.reset(
      static_cast<std::byte*>(std::aligned_alloc(io::kIoAlignment, slots * page_bytes)));
  if (!queue->memory_)
    return absl::ResourceExhaustedError(
        absl::StrCat("no memory for ", base::FormatBytes(slots * page_bytes), " of pages"));
  io->AddBuffer({queue->memory_.get(), slots * page_bytes});
  for (uint64_t slot = 0; slot < slots; ++slot) {
    queue->slots_.push_back({.memory = queue->memory_.get() + slot * page_bytes});
    queue->free_.push_back(slot);
  }
  return queue;
}

absl::StatusOr<uint64_t> PageQueue::FreeSlot() {
  while (free_.empty()) Reap();
  if (!error_.ok()) return error_;
  const uint64_t slot = free_.back();
  free_.pop_back();
  return slot;
}

absl::Status PageQueue::Write(const PageVersion& page) {
  SPILLWAY_ASSIGN_OR_RETURN(const uint64_t index, FreeSlot());
  Slot& slot = slots_[index];
  slot.page = page;
  slot.is_read = false;
  const PagePattern pattern = {seed_, page.page.tensor, page.page.page, page.version};
  pattern.Fill({slot.memory, page.page.bytes});
  pages_.Write(index, page.tensor, page.page.page, page.page.bytes, slot.memory);
  return absl::OkStatus();
}

absl::Status PageQueue::Read(const PageVersion& page) {
  SPILLWAY_ASSIGN_OR_RETURN(const uint64_t index, FreeSlot());
  Slot& slot = slots_[index];
  slot.page = page;
  slot.is_read = true;
  pages_.Read(index, page.tensor, page.page.page, page.page.bytes, slot.memory);
  return absl::OkStatus();
}

absl::Status PageQueue::Drain() {
  while (free_.size() < slots_.size()) Reap();
  return error_;
}

void PageQueue::Reap() {
  std::vector<io::PageIo::Result> results;
  pages_.Reap(absl::InfiniteDuration(), &results);
  for (const io::PageIo::Result& result : results) {
    const Slot& slot = slots_[result.tag];
    absl::Status status = result.status;
    if (status.ok() && slot.is_read) {
      const auto record = store_->FindPage(slot.page.tensor, slot.page.page.page);
      status = record.ok() ? Compare(slot.page, slot.memory, **record) : record.status();
    }
    error_.Update(status);
    free_.push_back(result.tag);
  }
}

absl::Status PageQueue::Compare(const PageVersion& page, const std::byte* memory,
                                const io::PageRecord& record) const {
  const PagePattern pattern = {seed_, page.page.tensor, page.page.page, page.version};
  const auto difference = pattern.FirstDifference({memory, page.page.bytes});
  if (!difference) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      "page ", page.page.page, " of tensor ", store_->Tensor(page.tensor).name, " in ",
      store_->Path(record.extent), " at offset ", record.extent.offset + record.skip_bytes,
      " does not have the bytes of its version ", page.version, ", from its byte ", *difference,
      " on"));
}

// Moves bytes between the first slot and an extent. Nothing else is under way.
absl::Status PageQueue::Transfer(io::IoOp op, const io::Extent& extent, uint64_t skip_bytes,
                                 uint64_t size_bytes) {
  SPILLWAY_ASSIGN_OR_RETURN(const io::FileUse file, store_->File(extent));
  const uint64_t rounded = base::RoundUp(size_bytes, io::kIoAlignment);
  const io::IoRequest request = {.op = op,
                                 .file = *file,
                                 .offset = extent.offset + skip_bytes,
                                 .buffer = slots_[0].memory,
                                 .size_bytes = static_cast<uint32_t>(rounded)};
  io_->Submit({&request, 1});
  std::vector<io::IoCompletion> done;
  while (done.empty()) io_->Reap(absl::InfiniteDuration(), &done);
  return done[0].status;
}

absl::Status PageQueue::WriteTo(const PageVersion& page, const io::Extent& extent) {
  SPILLWAY_RETURN_IF_ERROR(Drain());
  std::byte* const memory = slots_[0].memory;
  const std::span<std::byte> content(memory, page.page.bytes);
  PagePattern{seed_, page.page.tensor, page.page.page, page.version}.Fill(content);
  std::fill(memory + content.size(), memory + extent.size_bytes, std::byte{0});
  SPILLWAY_RETURN_IF_ERROR(Transfer(io::IoOp::kWrite, extent, 0, extent.size_bytes));
  store_->Record(
      page.tensor, page.page.page,
      {.extent = extent, .content_bytes = page.page.bytes, .checksum = io::Checksum(content)});
  return absl::OkStatus();
}

absl::Status PageQueue::ReadRecord(const PageVersion& page, const io::PageRecord& record) {
  SPILLWAY_RETURN_IF_ERROR(Drain());
  const uint64_t within = record.skip_bytes % io::kIoAlignment;
  SPILLWAY_RETURN_IF_ERROR(Transfer(io::IoOp::kRead, record.extent, record.skip_bytes - within,
                                    within + record.content_bytes));
  const std::byte* const content = slots_[0].memory + within;
  SPILLWAY_RETURN_IF_ERROR(Compare(page, content, record));
  if (io::Checksum({content, record.content_bytes}) == record.checksum) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("page ", page.page.page, " of tensor ",
                                          store_->Tensor(page.tensor).name,
                                          " does not have the checksum of its row"));
}

}  // namespace spillway::capacity
