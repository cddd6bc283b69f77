// SPDX-License-Identifier: Apache-2.0
//
// Leases: how one is asked for, granted and ended, and where readers take them without asking.

#include <utility>

#include "src/base/check.h"
#include "src/engine/residency.h"

namespace spillway::engine {

void Residency::Acquire(Ticket ticket, TileIndex tile, Tier tier, Access access, StreamId stream) {
  uses_.OnUse(tile, tier);
  const auto use = Ask(plan::TraceEvent::Kind::kAcquire, tile, tier, access);
  Job& job = AddJob(acquires_, Job::Kind::kAcquire, tile, tier);
  job.access = access;
  job.ticket = ticket;
  job.stream = stream;
  job.position = 0;
  job.use = use;
}

void Residency::BeginDrain(TileIndex tile, Tier tier, Access access, StreamId stream) {
  ++copy(tiles_[tile], tier).draining;
  ++num_draining_;
  if (Writes(access)) {
    tiles_[tile].writer = false;
    DrainingWriters& writers = draining_writers_[tile];
    writers.stream = stream;
    writers.tier = tier;
    ++writers.leases;
  }
  if (!FollowsUsesOf(tile)) return;
  following_->follower.ReleaseAsked(tile);
  // Who runs ahead of the stream takes nothing that the plan moves once this lease is over.
  if (!following_->follower.IsReadNext(tile, tier)) (void)leases_.count(tile, tier).Close();
}

Residency::Ended Residency::EndLease(TileIndex index, Tier tier, Access access, bool drained) {
  Tile& tile = tiles_[index];
  SPILLWAY_CHECK(leases_.leases(index, tier) > 0);
  leases_.count(index, tier).End();
  --num_leases_;
  if (drained) {
    --copy(tile, tier).draining;
    --num_draining_;
  }
  if (FollowsUsesOf(index)) {
    if (!drained) following_->follower.ReleaseAsked(index);
    following_->follower.Released(index);
  }
  if (Writes(access)) {
    if (!drained) {
      tile.writer = false;
    } else if (const auto writers = draining_writers_.find(index); --writers->second.leases == 0) {
      draining_writers_.erase(writers);
    }
    // Its stream waited for the copy, but word of that comes another way, and may come later.
    if (drained && tier == Tier::kDevice && tile.transfer == Transfer::kCopyIn)
      VoidOtherCopies(index, tier);
    if (tier == Tier::kPinned) MarkWritten(index);
  }
  DropIfDiscarded(index);
  if (following_) {
    following_->stuck.clear();
    following_->unsettled.push_back(index);
  } else {
    GoToRest(index);
  }
  return {.tile = index, .tier = tier};
}

// Not while a failed write waits to be told: whoever comes next has to ask, and is told.
void Residency::LetIn(const Ended& ended) {
  const Tile& tile = tiles_[ended.tile];
  const Copy& held = copy(tile, ended.tier);
  const bool stays = Ready(tile, ended.tier) && !IsWritten(ended.tile) && !tile.discard &&
                     !held.leaving && !copy(tile, Other(ended.tier)).leaving &&
                     !(ended.tier == Tier::kPinned && IsWhereHomesWillBe(tile));
  const bool is_next = !following_ || following_->follower.IsReadNext(ended.tile, ended.tier);
  if (stays && write_error_.ok() && is_next) {
    leases_.Open(ended.tile, ended.tier, held.offset);
  } else {
    (void)leases_.count(ended.tile, ended.tier).Close();
  }
}

// What Acquire and Grant do.
void Residency::Shared(TileIndex index, Tier tier) {
  uses_.OnUse(index, tier);
  const auto use = Ask(plan::TraceEvent::Kind::kAcquire, index, tier, Access::kRead);
  CountLease(index, tier);
  if (use) {
    // What the plan was to do with the tile before was not needed.
    if (!following_->follower.IsRunning(index)) following_->follower.Skip(index, *use);
    following_->follower.Happened(index);
  }
}

void Residency::CountLease(TileIndex index, Tier tier) {
  ++num_leases_;
  ++stats_.acquires;
  copy(tiles_[index], tier).prefetched = false;
  tiles_[index].last_use = ++clock_;
}

// A writer first sees to it that no reader comes. Work on the stream on which a writer is still at
// work comes after it.
bool Residency::CanLease(const Job& job) {
  const TileIndex index = job.tile;
  const Tile& tile = tiles_[index];
  if (tile.writer || tile.discard) return false;
  const auto writers = draining_writers_.find(index);
  const bool is_drained = writers == draining_writers_.end();
  if (!is_drained && (writers->second.stream != job.stream || writers->second.tier != job.tier))
    return false;
  if (!Writes(job.access)) return true;
  const bool is_alone =
      Shut(index) || (!is_drained && IsDraining(index) &&
                      tile.copies[0].draining + tile.copies[1].draining == writers->second.leases);
  return is_alone && !tile.copies[0].leaving && !tile.copies[1].leaving;
}

Residency::Outcome Residency::AdvanceAcquire(Job& job) {
  if (!job.failure.ok()) return Fail(job, job.failure);
  if (job.use && !job.pulled) return AdvancePlannedAcquire(job);
  Tile& tile = tiles_[job.tile];
  Copy& target = copy(tile, job.tier);
  const Copy& other = copy(tile, Other(job.tier));
  const bool makes_way = job.tier == Tier::kPinned && IsWhereHomesWillBe(tile) && !target.leaving &&
                         tile.transfer == Transfer::kNone && !writes_failing_ &&
                         !(following_ && LiesAsPlanned(job.tile, job.tier));
  if (makes_way && leases_.count(job.tile, Tier::kPinned).Close())
    StartEvict(job.tile, Tier::kPinned);
  // What goes to rest on NVMe is not met on its way.
  const bool is_leaving = target.leaving || (other.leaving && tile.rest == Tier::kNvme);
  if (!CanLease(job) || is_leaving) {
    ReleaseHeld(job);  // who waits for a lease to end must not keep room from its holder
    return Outcome::kWaiting;
  }
  const bool in_transfer = tile.transfer != Transfer::kNone;
  absl::Status why;
  // Room on the device is taken first.
  Room room = job.tier == Tier::kPinned ? EnsureHome(job, &why) : Room::kReady;
  if (room == Room::kReady && target.state == Copy::State::kReady) {
    if (Writes(job.access) && in_transfer) return Outcome::kWaiting;
    Grant(job, /*after_copy=*/false);
    return Outcome::kDone;
  }
  // A stream can wait for the copy itself.
  const bool arrives = tile.transfer == Transfer::kCopyIn && job.tier == Tier::kDevice;
  if (arrives && job.stream != kNoStream) {
    Grant(job, /*after_copy=*/true);
    return Outcome::kDone;
  }
  if (in_transfer) return Outcome::kWaiting;
  if (room == Room::kReady && job.access != Access::kDiscard) return Fill(job);
  if (room == Room::kReady) room = EnsureFrame(job, job.tier, job.position, &why);
  if (room == Room::kReady && job.tier == Tier::kDevice) room = EnsureHome(job, &why);
  if (room == Room::kWaiting) return Outcome::kWaiting;
  if (room == Room::kImpossible) return Fail(job, why);
  SetReady(target);
  Grant(job, /*after_copy=*/false);
  return Outcome::kDone;
}

void Residency::Grant(Job& job, bool after_copy) {
  Tile& tile = tiles_[job.tile];
  leases_.count(job.tile, job.tier).Take();
  CountLease(job.tile, job.tier);
  tile.leased_before_copy |= after_copy;
  if (Writes(job.access)) {
    tile.writer = true;
    if (!after_copy) VoidOtherCopies(job.tile, job.tier);
  }
  if (job.use) Happened(job.tile);
  actions_.push_back({.kind = Action::Kind::kGrant,
                      .tile = job.tile,
                      .pinned_offset = copy(tile, Tier::kPinned).offset,
                      .device_offset = copy(tile, Tier::kDevice).offset,
                      .ticket = job.ticket,
                      .after_copy = after_copy});
}

std::vector<std::string> Residency::LeaseNames(size_t limit) const {
  std::vector<std::string> names;
  for (TileIndex index = 0; index < tiles_.size() && names.size() < limit; ++index) {
    if (!IsLeased(index)) continue;
    names.push_back(options_.describe(index));
  }
  return names;
}

}  // namespace spillway::engine
