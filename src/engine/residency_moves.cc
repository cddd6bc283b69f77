// SPDX-License-Identifier: Apache-2.0
//
// Tiles that leave a tier, and tiles that come ahead of need.

#include <string>
#include <utility>

#include "src/engine/residency.h"

namespace spillway::engine {

// Towards the lowest tier, from the highest; not what is leased.
void Residency::Sink(TileIndex index) {
  Tile& tile = tiles_[index];
  if (!Shut(index)) return;
  const Tier tier = Ready(tile, Tier::kDevice) ? Tier::kDevice : Tier::kPinned;
  if (!Ready(tile, tier) || copy(tile, tier).leaving || IsHome(tile, tier)) return;
  if (tier == Tier::kPinned && !options_.has_store) return;
  StartEvict(index, tier);
}

void Residency::StartEvict(TileIndex index, Tier tier) {
  copy(tiles_[index], tier).leaving = true;
  AddJob(evictions_, Job::Kind::kEvict, index, tier).sinks = true;
}

// A tile whose role is placed somewhere goes there once its last lease has ended.
void Residency::GoToRest(TileIndex index) {
  Tile& tile = tiles_[index];
  if (!tile.rest || !Shut(index)) return;
  switch (*tile.rest) {
    case Tier::kDevice:
    case Tier::kPinned: {
      const Tier other = Other(*tile.rest);
      const bool may_leave = other == Tier::kDevice || options_.has_store;
      if (may_leave && Ready(tile, other) && !copy(tile, other).leaving) StartEvict(index, other);
      break;
    }
    case Tier::kNvme:
      if (!writes_failing_) Sink(index);
      break;
  }
}

Residency::Outcome Residency::AdvanceEvict(Job& job) {
  Tile& tile = tiles_[job.tile];
  if (tile.transfer != Transfer::kNone) return Outcome::kWaiting;
  Copy& leaving = copy(tile, job.tier);
  const bool from_device = job.tier == Tier::kDevice;
  const Copy& other = copy(tile, Other(job.tier));
  const bool kept = other.state == Copy::State::kReady && (from_device || !other.leaving);
  // What rests in the other tier goes there, even if NVMe has it too.
  const bool goes_home = IsHome(tile, Other(job.tier)) && other.state == Copy::State::kHeld;
  const bool forgettable =
      leaving.state == Copy::State::kHeld || tile.zero || kept || (tile.stored && !goes_home);

  absl::Status failure = forgettable ? absl::OkStatus() : job.failure;
  if (failure.ok() && !forgettable) {
    Room room = Room::kReady;
    if (from_device) room = EnsureFrame(job, Tier::kPinned, 0, &failure);
    if (room == Room::kWaiting) return Outcome::kWaiting;
    if (room == Room::kReady) {
      Start(job, from_device ? Transfer::kCopyOut
                 : goes_home ? Transfer::kCopyIn
                             : Transfer::kWrite);
      return Outcome::kProgress;
    }
  }
  if (!failure.ok()) {
    leaving.leaving = false;
    if (following_) following_->stuck.insert(job.tile);
    if (job.claim) CancelClaim(*job.claim, failure);
    return Outcome::kDone;
  }
  DropFrame(job.tile, job.tier, job.claim);
  if (following_) following_->unsettled.push_back(job.tile);
  const bool to_nvme = tile.rest == Tier::kNvme;
  const bool sink_further = from_device && options_.has_store && (to_nvme || !tile.zero);
  if (sink_further && (to_nvme || job.sinks)) Sink(job.tile);
  return Outcome::kDone;
}

// --- Ahead of need ---

Residency::Outcome Residency::AdvancePrefetch(Job& job) {
  Tile& tile = tiles_[job.tile];
  Copy& target = copy(tile, job.tier);
  if (target.state == Copy::State::kReady && job.failure.ok()) {
    if (leases_.leases(job.tile, job.tier) == 0) target.prefetched = true;
    ++stats_.prefetches;
    return Outcome::kDone;
  }
  const bool over =
      paused_ || !job.failure.ok() || IsWritten(job.tile) || tile.discard || target.leaving;
  const Outcome outcome = over ? Outcome::kDone : Fill(job);
  if (outcome == Outcome::kDone) ReleaseHeld(job);
  return outcome;
}

bool Residency::StartPrefetches() {
  if (writes_failing_ || paused_) return false;
  bool progress = false;
  while (prefetches_.size() < static_cast<size_t>(options_.max_prefetches)) {
    const UseQueue::Entry* use = uses_.PrefetchCandidate();
    if (use == nullptr) break;
    // A tile that is to be written whole before this use has nothing to bring in until then.
    const uint64_t next = uses_.NextUse(use->tile, use->tier);
    if (next < uses_.prefetch_position() && uses_.At(next).access == Access::kDiscard) break;
    const Tile& tile = tiles_[use->tile];
    const Copy& target = copy(tile, use->tier);
    const bool needless = use->access == Access::kDiscard || target.state != Copy::State::kNone ||
                          IsWritten(use->tile);
    if (!needless) {
      const uint64_t frame_bytes = FrameBytes(tile);
      const bool free_run =
          arenas_[At(use->tier)].HasFree(frame_bytes, homes_bytes_[At(use->tier)]);
      if (!free_run && !FindWindow(use->tier, frame_bytes, uses_.prefetch_position()).found) break;
      AddJob(prefetches_, Job::Kind::kPrefetch, use->tile, use->tier).position =
          uses_.prefetch_position();
      progress = true;
    }
    uses_.AdvancePrefetch();
  }
  return progress;
}

}  // namespace spillway::engine
