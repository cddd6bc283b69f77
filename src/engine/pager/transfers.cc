// SPDX-License-Identifier: Apache-2.0

#include "src/engine/pager/transfers.h"

#include <utility>

#include "src/base/check.h"

namespace spillway::engine {

void Transfers::Start(TileIndex tile, Transfer transfer, MoveReason reason, Job* job) {
  Page& page = pages_[tile];
  page.transfer = transfer;
  page.transfer_job = job;
  ++in_flight_;
  small_leaves_ |= transfer == Transfer::kWrite && page.tile->is_small;
  pages_.actions().push_back({.kind = Action::Kind::kTransfer,
                              .transfer = transfer,
                              .tile = tile,
                              .pinned_offset = page.copy(Tier::kPinned).offset,
                              .device_offset = page.copy(Tier::kDevice).offset,
                              .reason = reason});
}

Transfers::EndedTransfer Transfers::End(TileIndex tile) {
  Page& page = pages_[tile];
  --in_flight_;
  pages_.CountEnding();
  const bool is_written = page.written_before_copy;
  if (is_written) pages_.SetWrittenBeforeCopy(tile, false);
  return {.transfer = *std::exchange(page.transfer, std::nullopt),
          .job = std::exchange(page.transfer_job, nullptr),
          .planned = std::exchange(page.planned, std::nullopt),
          .is_leased = std::exchange(page.leased_before_copy, false),
          .is_written = is_written};
}

void Transfers::Arrive(TileIndex tile, const EndedTransfer& ended) {
  Page& page = pages_[tile];
  EngineStats& stats = pages_.stats();
  Traffic& role_nvme = stats.role_nvme[static_cast<size_t>(page.tile->role)];
  switch (ended.transfer) {
    case Transfer::kRead:
      stats.nvme.read_bytes += page.size_bytes();
      role_nvme.read_bytes += page.size_bytes();
      page.copy(Tier::kPinned).SetReady();
      break;
    case Transfer::kZero: page.copy(Tier::kPinned).SetReady(); break;
    case Transfer::kCopyIn:
      stats.pinned.read_bytes += page.size_bytes();
      page.copy(Tier::kDevice).SetReady();
      if (pages_.leases().IsWritten(tile) || ended.is_written)
        pages_.VoidOtherCopies(tile, Tier::kDevice);
      break;
    case Transfer::kCopyOut:
      stats.pinned.written_bytes += page.size_bytes();
      page.copy(Tier::kPinned).SetReady();
      break;
    case Transfer::kWrite:
      stats.nvme.written_bytes += page.size_bytes();
      role_nvme.written_bytes += page.size_bytes();
      pages_.SetStored(tile, true);
      break;
    default: SPILLWAY_CHECK(false);
  }
}

}  // namespace spillway::engine
