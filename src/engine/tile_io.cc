// SPDX-License-Identifier: Apache-2.0

#include "src/engine/tile_io.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "io/checksum.h"

namespace spillway::engine {
namespace {

constexpr int kPageBits = 24;  // of a request's tag; the rest is the operation's id
constexpr uint64_t kPageMask = (uint64_t{1} << kPageBits) - 1;

uint32_t RoundUpToAlignment(uint64_t bytes) {
  return static_cast<uint32_t>((bytes + io::kIoAlignment - 1) / io::kIoAlignment *
                               io::kIoAlignment);
}

}  // namespace

TileIo::TileIo(io::Store* store, io::IoEngine* io)
    : store_(store), io_(io), page_bytes_(store->page_bytes()) {}

uint64_t TileIo::NumPages(const TilePlace& place) const {
  return (place.size_bytes + page_bytes_ - 1) / page_bytes_;
}

io::IoRequest TileIo::Request(uint64_t id, const Operation& operation, size_t page) const {
  const io::Extent& extent = operation.pages[page].extent;
  return {.op = operation.op,
          .file = operation.files[page],
          .offset = extent.offset,
          .buffer = operation.frame + page * page_bytes_,
          .size_bytes = extent.size_bytes,
          .tag = id << kPageBits | page};
}

void TileIo::Submit(uint64_t id, Operation operation) {
  operation.remaining = operation.pages.size();
  for (const io::PageRecord& page : operation.pages) {
    const absl::StatusOr<io::FileId> file = store_->File(page.extent);
    if (!file.ok()) {
      if (operation.op == io::IoOp::kWrite) {
        for (const io::PageRecord& taken : operation.pages) store_->Release(taken.extent);
      }
      return FailAtOnce(operation.tile, file.status());
    }
    operation.files.push_back(*file);
  }
  std::vector<io::IoRequest> requests;
  requests.reserve(operation.pages.size());
  for (size_t page = 0; page < operation.pages.size(); ++page)
    requests.push_back(Request(id, operation, page));
  operations_.emplace(id, std::move(operation));
  io_->Submit(requests);
}

void TileIo::FailAtOnce(TileIndex tile, absl::Status status) {
  results_.push_back({tile, std::move(status)});
}

void TileIo::Read(TileIndex tile, const TilePlace& place, std::byte* frame) {
  Operation operation{.tile = tile, .op = io::IoOp::kRead, .place = place, .frame = frame};
  for (uint64_t page = 0; page < NumPages(place); ++page) {
    const auto record = store_->FindPage(place.tensor, place.first_page + page);
    if (!record.ok()) return FailAtOnce(tile, record.status());
    if (!record->has_value())
      return FailAtOnce(tile,
                        absl::InternalError(absl::StrCat("page ", page, " is not in the store")));
    operation.pages.push_back(**record);
  }
  operation.retried.resize(operation.pages.size());
  Submit(next_id_++, std::move(operation));
}

void TileIo::Write(TileIndex tile, const TilePlace& place, std::byte* frame) {
  Operation operation{.tile = tile, .op = io::IoOp::kWrite, .place = place, .frame = frame};
  const uint64_t num_pages = NumPages(place);
  for (uint64_t page = 0; page < num_pages; ++page) {
    const uint64_t offset = page * page_bytes_;
    io::PageRecord record;
    record.content_bytes = static_cast<uint32_t>(std::min(page_bytes_, place.size_bytes - offset));
    const uint32_t extent_bytes = RoundUpToAlignment(record.content_bytes);
    auto extent = store_->Allocate(extent_bytes);
    if (!extent.ok()) {
      for (const io::PageRecord& taken : operation.pages) store_->Release(taken.extent);
      return FailAtOnce(tile, extent.status());
    }
    record.extent = *extent;
    std::byte* content = frame + offset;
    record.checksum = io::Checksum({content, record.content_bytes});
    std::memset(content + record.content_bytes, 0, extent_bytes - record.content_bytes);
    operation.pages.push_back(record);
  }
  Submit(next_id_++, std::move(operation));
}

void TileIo::Forget(const TilePlace& place) {
  for (uint64_t page = 0; page < NumPages(place); ++page)
    store_->Forget(place.tensor, place.first_page + page);
}

absl::Status TileIo::Verify(const Operation& operation, size_t page) const {
  const io::PageRecord& record = operation.pages[page];
  const uint64_t checksum =
      io::Checksum({operation.frame + page * page_bytes_, record.content_bytes});
  if (checksum == record.checksum) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      "page ", operation.place.first_page + page, " in ", store_->Path(record.extent),
      " at offset ", record.extent.offset, " (", record.content_bytes, " bytes) has checksum ",
      absl::Hex(checksum, absl::kZeroPad16), ", the catalog says ",
      absl::Hex(record.checksum, absl::kZeroPad16),
      ": the bytes on the device are not those that were written; restore the store from a copy"));
}

void TileIo::OnCompletion(const io::IoCompletion& completion) {
  const uint64_t id = completion.tag >> kPageBits;
  const size_t page = completion.tag & kPageMask;
  Operation& operation = operations_.at(id);
  absl::Status status = completion.status;
  if (status.ok() && operation.op == io::IoOp::kRead) {
    status = Verify(operation, page);
    if (!status.ok() && !operation.retried[page]) {
      operation.retried[page] = true;
      const io::IoRequest again = Request(id, operation, page);
      io_->Submit({&again, 1});
      return;
    }
  }
  if (operation.status.ok()) operation.status = status;
  if (--operation.remaining == 0) Finish(id);
}

void TileIo::Finish(uint64_t id) {
  auto node = operations_.extract(id);
  Operation& operation = node.mapped();
  if (operation.op == io::IoOp::kWrite) {
    for (size_t page = 0; page < operation.pages.size(); ++page) {
      if (operation.status.ok()) {
        store_->Record(operation.place.tensor, operation.place.first_page + page,
                       operation.pages[page]);
      } else {
        store_->Release(operation.pages[page].extent);
      }
    }
  }
  results_.push_back({operation.tile, std::move(operation.status)});
}

void TileIo::Reap(absl::Duration timeout, std::vector<TileIoResult>* results) {
  completions_.clear();
  io_->Reap(results_.empty() ? timeout : absl::ZeroDuration(), &completions_);
  for (const io::IoCompletion& completion : completions_) OnCompletion(completion);
  for (TileIoResult& result : results_) results->push_back(std::move(result));
  results_.clear();
}

}  // namespace spillway::engine
