// SPDX-License-Identifier: Apache-2.0

#include "src/engine/tile_copies.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "io/checksum.h"
#include "src/base/clock.h"
#include "src/base/status_macros.h"

namespace spillway::engine {

using base::MutexLock;
using tiers::CopyDirection;

TileCopies::TileCopies(Parts parts, Listener* listener)
    : parts_(std::move(parts)), listener_(*listener) {}

TileCopies::~TileCopies() {
  for (const tiers::StreamHandle stream : streams_)
    if (stream.value != nullptr) parts_.runtime->DestroyStream(stream);
}

absl::Status TileCopies::Start() {
  for (tiers::StreamHandle& stream : streams_) {
    SPILLWAY_ASSIGN_OR_RETURN(stream, parts_.runtime->CreateStream());
  }
  return absl::OkStatus();
}

base::LinkBusy TileCopies::busy(Transfer copy) const {
  MutexLock lock(&mu_);
  return meters_[copy == Transfer::kCopyIn ? 0 : 1].busy();
}

bool TileCopies::MustCompareBefore(TileIndex tile) const {
  return !parts_.runtime->copies_on_cpu() &&
         parts_.checksums->KindOf(tile) == TileChecksums::Kind::kExpected;
}

void TileCopies::Copy(const Action& action, const Tile& tile) {
  const bool in = action.Is(Transfer::kCopyIn);
  const size_t way = Way(action);
  const auto stop_meter = [this, way](uint64_t copied_bytes) {
    MutexLock lock(&mu_);
    meters_[way].End(base::Now(), copied_bytes);
  };
  {
    MutexLock lock(&mu_);
    meters_[way].Begin(base::Now());
    if (in) failed_.erase(action.tile);
  }
  const auto compared = std::make_shared<absl::Status>();
  absl::Status status = Launch(action, tile, compared);
  if (status.ok()) {
    status = parts_.runtime->Notify(streams_[way],
                                    [=, this, bytes = tile.size_bytes](const absl::Status& copied) {
                                      if (!copied.ok()) listener_.OnFailedWait(copied);
                                      const absl::Status& result = copied.ok() ? *compared : copied;
                                      stop_meter(result.ok() ? bytes : 0);
                                      End(action, result);
                                    });
  }
  if (status.ok()) return;
  // Parts of the copy may be in flight, and no notification would report their end.
  const absl::Status ended = parts_.runtime->Synchronize(streams_[way]);
  if (!ended.ok()) listener_.OnFailedWait(ended);
  stop_meter(0);
  End(action, status);
}

// `compared` becomes the result of comparing, if the copy does that, before the copy ends.
absl::Status TileCopies::Launch(const Action& action, const Tile& tile,
                                const std::shared_ptr<absl::Status>& compared) {
  tiers::DeviceRuntime& runtime = *parts_.runtime;
  TileChecksums& checksums = *parts_.checksums;
  const TileIndex index = action.tile;
  const tiers::StreamHandle stream = streams_[Way(action)];
  std::byte* const pinned = parts_.pinned + action.pinned_offset;
  std::byte* const device = parts_.device + action.device_offset;
  const bool hashes = runtime.copies_on_cpu() && parts_.page_bytes > 0;
  if (action.Is(Transfer::kCopyOut)) {
    if (hashes && checksums.NoteCopyOut(index)) {
      return runtime.Launch(stream, [this, index, bytes = tile.size_bytes, pinned, device] {
        CopyHashed(index, bytes, pinned, device);
      });
    }
    return runtime.CopyAsync(stream, CopyDirection::kDeviceToHost, pinned, device, tile.size_bytes);
  }
  if (hashes) checksums.SetComparedByUser(index, true);
  if (hashes && checksums.KindOf(index) == TileChecksums::Kind::kExpected) {
    {
      MutexLock lock(&mu_);
      comparing_.try_emplace(index);
    }
    return runtime.Launch(stream, [this, index, &tile, pinned, device, compared] {
      *compared = CopyCompared(index, tile, pinned, device);
    });
  }
  return runtime.CopyAsync(stream, CopyDirection::kHostToDevice, device, pinned, tile.size_bytes);
}

// Copies the tile's pages to the device, each after it was found to match its checksum.
absl::Status TileCopies::CopyCompared(TileIndex index, const Tile& tile, std::byte* pinned,
                                      std::byte* device) const {
  // Empty if a reader in pinned memory has compared the pages meanwhile.
  const std::vector<uint64_t> expected = parts_.checksums->Of(index);
  for (uint64_t begin = 0, page = 0; begin < tile.size_bytes; begin += parts_.page_bytes, ++page) {
    const uint64_t bytes = std::min(parts_.page_bytes, tile.size_bytes - begin);
    if (!expected.empty() && io::Checksum({pinned + begin, bytes}) != expected[page])
      SPILLWAY_RETURN_IF_ERROR(parts_.read_again(tile, page, expected[page], pinned));
    std::memcpy(device + begin, pinned + begin, bytes);
  }
  parts_.checksums->Clear(index);
  return absl::OkStatus();
}

// Copies the tile's pages from the device, and hashes each while it is in the cache.
void TileCopies::CopyHashed(TileIndex index, uint64_t size_bytes, std::byte* pinned,
                            const std::byte* device) const {
  std::vector<uint64_t> checksums;
  for (uint64_t begin = 0; begin < size_bytes; begin += parts_.page_bytes) {
    const uint64_t bytes = std::min(parts_.page_bytes, size_bytes - begin);
    checksums.push_back(io::Checksum({device + begin, bytes}));
    std::memcpy(pinned + begin, device + begin, bytes);
  }
  parts_.checksums->Set(index, TileChecksums::Kind::kComputed, std::move(checksums));
}

// Reports the end of a copy, and grants the leases that have waited for the comparison.
void TileCopies::End(const Action& action, const absl::Status& status) {
  std::vector<Action> grants;
  if (action.Is(Transfer::kCopyIn)) {
    MutexLock lock(&mu_);
    if (!status.ok()) failed_[action.tile] = status;
    if (auto compared = comparing_.extract(action.tile)) grants = std::move(compared.mapped());
  }
  listener_.OnCopied(action.tile, status);
  for (const Action& grant : grants) listener_.OnLaunched(grant, status, {});
}

void TileCopies::Grant(const Action& grant) {
  absl::Status status;
  {
    MutexLock lock(&mu_);
    const auto comparing = comparing_.find(grant.tile);
    if (comparing != comparing_.end()) return comparing->second.push_back(grant);
    const auto failed = failed_.find(grant.tile);
    if (failed != failed_.end()) status = failed->second;
  }
  if (!status.ok()) return listener_.OnLaunched(grant, status, {});
  absl::StatusOr<tiers::EventHandle> marked = MarkArrival();
  const tiers::EventHandle arrival = marked.value_or(tiers::EventHandle{});
  listener_.OnLaunched(grant, std::move(marked).status(), arrival);
}

// Marks the end of the copies to the device that were launched so far.
absl::StatusOr<tiers::EventHandle> TileCopies::MarkArrival() {
  SPILLWAY_ASSIGN_OR_RETURN(const tiers::EventHandle event, parts_.runtime->CreateEvent());
  const absl::Status status = parts_.runtime->Record(event, streams_[0]);
  if (status.ok()) return event;
  parts_.runtime->DestroyEvent(event);
  return status;
}

}  // namespace spillway::engine
