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
  const size_t way = Way(action);
  const auto stop_meter = [this, way](uint64_t copied_bytes) {
    MutexLock lock(&mu_);
    meters_[way].End(base::Now(), copied_bytes);
  };
  {
    MutexLock lock(&mu_);
    meters_[way].Begin(base::Now());
    if (action.Is(Transfer::kCopyIn)) {  // what the tile's last copy left
      failed_.erase(action.tile);
      comparing_.erase(action.tile);
    }
  }
  const std::shared_ptr<Comparison> comparison = Compares(action);
  absl::Status status = Launch(action, tile, comparison.get());
  if (status.ok()) {
    const auto ended = [=, this, bytes = tile.size_bytes](const absl::Status& copied) {
      if (!copied.ok()) listener_.OnFailedWait(copied);
      absl::Status result = copied;
      if (comparison != nullptr) result.Update(comparison->status);
      stop_meter(result.ok() ? bytes : 0);
      if (comparison != nullptr) return EndComparison(action.tile, comparison, result);
      listener_.OnCopied(action.tile, result);
    };
    status = parts_.runtime->Notify(streams_[way], ended);
  }
  if (status.ok()) return;
  // Parts of the copy may be in flight, and no notification would report their end.
  const absl::Status waited = parts_.runtime->Synchronize(streams_[way]);
  if (!waited.ok()) listener_.OnFailedWait(waited);
  stop_meter(0);
  if (comparison != nullptr) return EndComparison(action.tile, comparison, status);
  if (action.Is(Transfer::kCopyIn)) return Fail(action, status);
  listener_.OnCopied(action.tile, status);
}

void TileCopies::Fail(const Action& copy_in, const absl::Status& status) {
  {
    MutexLock lock(&mu_);
    failed_[copy_in.tile] = status;
  }
  listener_.OnCopied(copy_in.tile, status);
}

// Returns the comparison that the copy makes, or null.
std::shared_ptr<TileCopies::Comparison> TileCopies::Compares(const Action& action) {
  if (!action.Is(Transfer::kCopyIn) || !parts_.runtime->copies_on_cpu() || parts_.page_bytes == 0)
    return nullptr;
  parts_.checksums->SetComparedByUser(action.tile, true);  // its next read
  if (parts_.checksums->KindOf(action.tile) != TileChecksums::Kind::kExpected) return nullptr;
  auto comparison = std::make_shared<Comparison>();
  MutexLock lock(&mu_);
  comparing_.emplace(action.tile, comparison);
  return comparison;
}

// Reports the end of a copy that has compared its tile, then grants the leases that waited for it.
// The tile's next copy may start between the two.
void TileCopies::EndComparison(TileIndex tile, const std::shared_ptr<Comparison>& comparison,
                               const absl::Status& status) {
  if (!status.ok()) {
    MutexLock lock(&mu_);
    failed_[tile] = status;
  }
  listener_.OnCopied(tile, status);
  std::vector<Action> grants;
  {
    MutexLock lock(&mu_);
    grants.swap(comparison->grants);
    const auto latest = comparing_.find(tile);
    if (latest != comparing_.end() && latest->second == comparison) comparing_.erase(latest);
  }
  for (const Action& grant : grants) listener_.OnLaunched(grant, status, {});
}

absl::Status TileCopies::Launch(const Action& action, const Tile& tile, Comparison* comparison) {
  tiers::DeviceRuntime& runtime = *parts_.runtime;
  const TileIndex index = action.tile;
  const tiers::StreamHandle stream = streams_[Way(action)];
  std::byte* const pinned = parts_.pinned + action.pinned_offset;
  std::byte* const device = parts_.device + action.device_offset;
  if (comparison != nullptr) {
    return runtime.Launch(stream, [this, index, &tile, pinned, device, comparison] {
      comparison->status = CopyCompared(index, tile, pinned, device);
    });
  }
  if (action.Is(Transfer::kCopyIn))
    return runtime.CopyAsync(stream, CopyDirection::kHostToDevice, device, pinned, tile.size_bytes);
  // The store hashes small tiles itself.
  const bool may_hash = runtime.copies_on_cpu() && parts_.page_bytes > 0 && !tile.is_small;
  if (may_hash && parts_.checksums->NoteCopyOut(index)) {
    return runtime.Launch(stream, [this, index, bytes = tile.size_bytes, pinned, device] {
      CopyHashed(index, bytes, pinned, device);
    });
  }
  return runtime.CopyAsync(stream, CopyDirection::kDeviceToHost, pinned, device, tile.size_bytes);
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

void TileCopies::Grant(const Action& grant) {
  absl::Status status;
  {
    MutexLock lock(&mu_);
    const auto comparing = comparing_.find(grant.tile);
    if (comparing != comparing_.end()) return comparing->second->grants.push_back(grant);
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
