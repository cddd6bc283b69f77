// SPDX-License-Identifier: Apache-2.0
//
// The state machine's events and its pump. Each job is one request going forward as far as it can:
// a lease (residency_leases.cc), a prefetch, a tile leaving (both in residency_moves.cc), a tile on
// its way to a commit. How room is found is in residency_room.cc, the way to NVMe in
// residency_flush.cc, what a plan changes in residency_plan.cc.

#include "src/engine/residency.h"

#include <algorithm>
#include <utility>

#include "src/base/bytes.h"
#include "src/base/check.h"

namespace spillway::engine {

namespace {

// Different, as a rule, for other arguments.
uint64_t HashOf(TileIndex tile, uint64_t value) {
  const uint64_t mixed = (value + (uint64_t{tile} << 40) + 1) * 0x9E3779B97F4A7C15;
  return (mixed ^ mixed >> 31) * 0xBF58476D1CE4E5B9;
}

}  // namespace

Residency::Residency(ResidencyOptions options)
    : options_(std::move(options)),
      arenas_{ArenaMap(options_.device_bytes), ArenaMap(options_.pinned_bytes)},
      places_begin_(base::RoundDown(options_.pinned_bytes, kFrameAlignment)) {}

TileIndex Residency::AddTile(uint64_t size_bytes, Role role, bool transient, bool stored) {
  const bool did_fit = AllFit();
  const auto index = static_cast<TileIndex>(tiles_.size());
  Tile& tile = tiles_.emplace_back();
  leases_.AddTile();
  tile.size_bytes = size_bytes;
  tile.role = role;
  tile.rest = options_.placement[static_cast<size_t>(role)];
  tile.transient = transient;
  frames_bytes_ += FrameBytes(tile);
  if (tile.rest && *tile.rest != Tier::kNvme) {
    const uint64_t before = homes_bytes_[At(*tile.rest)];
    homes_bytes_[At(*tile.rest)] += FrameBytes(tile);
    if (*tile.rest == Tier::kPinned) ShutWhereHomesWillBe(before);
  }
  if (HasOwnPlace(tile)) {
    places_begin_ -= FrameBytes(tile);
    tile.own_place = places_begin_;
  }
  if (stored) {
    SetZero(index, false);
    SetStored(index, true);
  }
  // A plan may have frames where the tile will rest, or where all tiles have a place of their own.
  if ((tile.rest && *tile.rest != Tier::kNvme) || did_fit != AllFit())
    LeavePlan(/*deviated=*/false);
  if (following_) following_->follower.AddTile();
  return index;
}

// --- Events from callers ---

absl::Status Residency::Evict(TileIndex index) {
  if (!Shut(index)) {
    return absl::FailedPreconditionError(options_.describe(index) +
                                         " is leased: release its leases before Evict");
  }
  Sink(index);
  return absl::OkStatus();
}

absl::Status Residency::Discard(TileIndex index) {
  Tile& tile = tiles_[index];
  if (!Shut(index) && !IsDraining(index)) {
    return absl::FailedPreconditionError(options_.describe(index) +
                                         " is leased: release its leases before Discard");
  }
  if (Ask(plan::TraceEvent::Kind::kDiscard, index, Tier::kDevice, Access::kRead))
    ++following_->discards[index];
  const bool had_bytes = HasBytes(tile);
  tile.discard = true;
  NoteBytes(index, had_bytes);
  DropIfDiscarded(index);
  return absl::OkStatus();
}

void Residency::DropIfDiscarded(TileIndex index) {
  Tile& tile = tiles_[index];
  if (!tile.discard || tile.transfer != Transfer::kNone || IsLeased(index)) return;
  SetZero(index, true);
  tile.discard = false;
  for (Tier tier : {Tier::kDevice, Tier::kPinned}) {
    Copy& held = copy(tile, tier);
    const bool idle = held.state == Copy::State::kReady || held.state == Copy::State::kHeld;
    if (idle && !held.leaving && leases_.leases(index, tier) == 0) DropFrame(index, tier);
  }
  if (tile.stored) {
    SetStored(index, false);
    actions_.push_back({.kind = Action::Kind::kForget, .tile = index});
  }
  if (!following_) return;
  for (auto asked = following_->discards.extract(index); asked && asked.mapped() > 0;
       --asked.mapped()) {
    Happened(index);
  }
}

bool Residency::Pause() {
  SPILLWAY_CHECK(!in_use());
  if (!leases_.CloseAll()) return false;
  paused_ = true;
  LeavePlan(/*deviated=*/false);
  uses_.Clear();
  return true;
}

// Nothing is in flight and nobody waits, so what jobs and claims there are were begun unasked and
// end here with the rooms that they were about.
void Residency::Reset(const std::function<bool(TileIndex)>& is_stored) {
  SPILLWAY_CHECK(!in_use() && transfers_ == 0);
  for (Jobs* jobs : {&evictions_, &flushes_, &prefetches_}) jobs->clear();
  claims_.clear();
  written_.clear();
  small_written_.clear();
  arenas_ = {ArenaMap(options_.device_bytes), ArenaMap(options_.pinned_bytes)};
  for (TileIndex index = 0; index < tiles_.size(); ++index) {
    Tile& tile = tiles_[index];
    ForgetCopies(index);
    tile.queued = false;
    if (tile.transient && tile.stored) {
      actions_.push_back({.kind = Action::Kind::kForget, .tile = index});
    }
    SetStored(index, !tile.transient && is_stored(index));
    SetZero(index, !tile.stored);
  }
  write_error_ = absl::OkStatus();  // what could not be written is wanted no longer
  writes_failing_ = false;
  paused_ = false;
}

void Residency::ForgetCopies(TileIndex index) {
  for (Tier tier : {Tier::kDevice, Tier::kPinned}) {
    Copy& held = copy(tiles_[index], tier);
    if (held.prefetched) ++stats_.prefetch_wasted;
    const bool has_frame = held.state == Copy::State::kHeld || held.state == Copy::State::kReady;
    const uint64_t offset = held.offset;
    held = Copy{};
    if (!has_frame) continue;
    if (IsHome(tiles_[index], tier)) {
      SPILLWAY_CHECK(arenas_[At(tier)].AllocateAt(offset, FrameBytes(tiles_[index]), index));
      held.state = Copy::State::kHeld;
      held.offset = offset;
    } else {
      Count(index, tier, false);
    }
  }
}

plan::TileNow Residency::Now(TileIndex index) const {
  const Tile& tile = tiles_[index];
  plan::TileNow state{.stored = HasBytes(tile)};
  if (!tile.rest && HasOwnPlace(tile)) state.home = plan::Home{Tier::kPinned, tile.own_place};
  if (!tile.rest || *tile.rest == Tier::kNvme) return state;
  const Copy& home = copy(tile, *tile.rest);
  if (home.state == Copy::State::kHeld || home.state == Copy::State::kReady)
    state.home = plan::Home{*tile.rest, home.offset};
  return state;
}

// --- Events from the mover ---

void Residency::TransferDone(TileIndex index, const absl::Status& status) {
  Tile& tile = tiles_[index];
  const Transfer transfer = std::exchange(tile.transfer, Transfer::kNone);
  Job* job = std::exchange(tile.transfer_job, nullptr);
  const std::optional<Planned> planned = std::exchange(tile.planned, std::nullopt);
  const bool is_leased = std::exchange(tile.leased_before_copy, false);
  --transfers_;
  if (!status.ok()) {
    if (job != nullptr) job->failure = status;
    if (transfer == Transfer::kWrite) writes_failing_ = true;
    // Whoever needs what could not be brought in is told when that fails again; but of a lease
    // whose stream waits for the copy, nobody asks again.
    if (transfer == Transfer::kWrite || is_leased || (job == nullptr && !planned))
      SetWriteError(status);
    DropIfDiscarded(index);
    LeavePlan(/*deviated=*/true);
    return;
  }
  Copy& device = copy(tile, Tier::kDevice);
  Copy& pinned = copy(tile, Tier::kPinned);
  switch (transfer) {
    case Transfer::kNone: SPILLWAY_CHECK(false); break;
    case Transfer::kRead:
      stats_.nvme.read_bytes += tile.size_bytes;
      SetReady(pinned);
      break;
    case Transfer::kZero: SetReady(pinned); break;
    case Transfer::kCopyIn:
      stats_.pinned.read_bytes += tile.size_bytes;
      SetReady(device);
      if (IsWritten(index)) VoidOtherCopies(index, Tier::kDevice);
      break;
    case Transfer::kCopyOut:
      stats_.pinned.written_bytes += tile.size_bytes;
      SetReady(pinned);
      MarkWritten(index);
      break;
    case Transfer::kWrite:
      stats_.nvme.written_bytes += tile.size_bytes;
      SetStored(index, true);
      writes_failing_ = false;
      break;
  }
  DropIfDiscarded(index);
  if (planned) PlannedTransferDone(*planned);
}

// --- The pump ---

std::vector<Action> Residency::TakeActions() {
  do {
    bool progress = true;
    while (progress) {
      progress = AdvanceAll(acquires_);
      progress |= AdvanceAll(evictions_);
      StartFlushes();
      progress |= AdvanceAll(flushes_);
      progress |= AdvanceAll(prefetches_);
      progress |= std::exchange(new_jobs_, false);
      if (!progress) progress = (following_ ? AdvancePlan() : StartPrefetches()) || new_jobs_;
    }
    StartWriteBehind();
    AdvanceAll(flushes_);
    small_leaves_ = false;
  } while (FinishFlush());
  return std::exchange(actions_, {});
}

bool Residency::AdvanceAll(Jobs& jobs) {
  bool progress = false;
  for (auto it = jobs.begin(); it != jobs.end();) {
    const Outcome outcome = Advance(*it);
    progress |= outcome != Outcome::kWaiting;
    if (outcome == Outcome::kDone) ForgetHolder(*it);
    it = outcome == Outcome::kDone ? jobs.erase(it) : std::next(it);
  }
  return progress;
}

Residency::Job& Residency::AddJob(Jobs& jobs, Job::Kind kind, TileIndex tile, Tier tier) {
  new_jobs_ = true;
  Job& job = jobs.emplace_back();
  job.kind = kind;
  job.tile = tile;
  job.tier = tier;
  return job;
}

Residency::Outcome Residency::Advance(Job& job) {
  if (tiles_[job.tile].transfer_job == &job) return Outcome::kWaiting;
  switch (job.kind) {
    case Job::Kind::kAcquire: return AdvanceAcquire(job);
    case Job::Kind::kPrefetch: return AdvancePrefetch(job);
    case Job::Kind::kEvict: return AdvanceEvict(job);
    case Job::Kind::kFlush: return AdvanceFlush(job);
  }
  return Outcome::kDone;
}

// Starts the next transfer that brings the tile nearer to the job's tier.
Residency::Outcome Residency::Fill(Job& job) {
  Tile& tile = tiles_[job.tile];
  if (tile.transfer != Transfer::kNone) return Outcome::kWaiting;
  absl::Status why;
  Room room = EnsureFrame(job, job.tier, job.position, &why);
  // Room is taken in one order: what waits for the device must not keep pinned room.
  if (room == Room::kWaiting && job.tier == Tier::kDevice) ReleaseHeld(job);
  const Tier other = Other(job.tier);
  if (room == Room::kReady && Ready(tile, other)) {
    if (copy(tile, other).leaving) return Outcome::kWaiting;
    Start(job, job.tier == Tier::kDevice ? Transfer::kCopyIn : Transfer::kCopyOut);
    if (job.stream == kNoStream || job.tier == Tier::kPinned) return Outcome::kProgress;
    tile.transfer_job = nullptr;  // the stream waits for the copy, the caller does not
    Grant(job, /*after_copy=*/true);
    return Outcome::kDone;
  }
  // With device room in hand, staging may take whatever is not leased: waiting here while holding
  // that room could make a caller wait for it for ever.
  if (room == Room::kReady && job.tier == Tier::kDevice) {
    if (copy(tile, Tier::kPinned).leaving) return Outcome::kWaiting;
    room = EnsureFrame(job, Tier::kPinned, 0, &why);
  }
  if (room == Room::kWaiting) return Outcome::kWaiting;
  if (room == Room::kImpossible) return Fail(job, why);
  Start(job, tile.stored ? Transfer::kRead : Transfer::kZero);
  return Outcome::kProgress;
}

plan::Link Residency::LinkOf(Transfer transfer) {
  switch (transfer) {
    case Transfer::kWrite: return plan::Link::kWrite;
    case Transfer::kCopyIn: return plan::Link::kCopyIn;
    case Transfer::kCopyOut: return plan::Link::kCopyOut;
    default: return plan::Link::kRead;
  }
}

void Residency::Start(Job& job, Transfer transfer) {
  tiles_[job.tile].transfer_job = &job;
  StartTransfer(job.tile, transfer, ReasonOf(job));
  if (job.pulled && job.use && transfer != Transfer::kZero) {
    following_->follower.CountPulled(job.tile, *job.use, LinkOf(transfer),
                                     tiles_[job.tile].size_bytes);
  }
}

void Residency::StartTransfer(TileIndex index, Transfer transfer, MoveReason reason) {
  Tile& tile = tiles_[index];
  tile.transfer = transfer;
  ++transfers_;
  small_leaves_ |= transfer == Transfer::kWrite && IsSmall(tile);
  static constexpr std::array<Action::Kind, 6> kKinds = {
      Action::Kind::kForget, Action::Kind::kRead,   Action::Kind::kWrite,
      Action::Kind::kZero,   Action::Kind::kCopyIn, Action::Kind::kCopyOut};
  actions_.push_back({.kind = kKinds[static_cast<size_t>(transfer)],
                      .tile = index,
                      .pinned_offset = copy(tile, Tier::kPinned).offset,
                      .device_offset = copy(tile, Tier::kDevice).offset,
                      .reason = reason});
}

MoveReason Residency::ReasonOf(const Job& job) {
  switch (job.kind) {
    case Job::Kind::kAcquire: return MoveReason::kLease;
    case Job::Kind::kPrefetch: return MoveReason::kAhead;
    case Job::Kind::kEvict: return MoveReason::kMakeRoom;
    case Job::Kind::kFlush: break;
  }
  return job.ticket == kNoTicket ? MoveReason::kWriteBehind : MoveReason::kCommit;
}

// A writer has the only bytes that count from now on.
void Residency::VoidOtherCopies(TileIndex index, Tier keep) {
  Tile& tile = tiles_[index];
  const Tier other = Other(keep);
  Copy& stale = copy(tile, other);
  if (stale.state == Copy::State::kReady && other == Tier::kPinned && !options_.has_store) {
    stale.state = Copy::State::kHeld;  // its home: without a store there is no other
  } else if (stale.state != Copy::State::kNone && options_.has_store) {
    // A claim under way ends as a frame that is idle, which the next claim may take.
    if (stale.state != Copy::State::kClaiming) DropFrame(index, other);
  } else if (stale.state == Copy::State::kReady) {
    DropFrame(index, other);
  }
  SetZero(index, false);
  if (!tile.stored) return;
  SetStored(index, false);
  if (tile.transient) actions_.push_back({.kind = Action::Kind::kForget, .tile = index});
}

Residency::Outcome Residency::Fail(Job& job, absl::Status status) {
  if (job.kind == Job::Kind::kAcquire) {
    if (status == write_error_) write_error_ = absl::OkStatus();
    if (job.use) LeavePlan(/*deviated=*/true);
    ReleaseHeld(job);
    actions_.push_back({.kind = Action::Kind::kFail,
                        .tile = job.tile,
                        .ticket = job.ticket,
                        .status = std::move(status)});
  }
  return Outcome::kDone;
}

void Residency::SetStored(TileIndex index, bool stored) {
  Tile& tile = tiles_[index];
  if (tile.stored == stored) return;
  tile.stored = stored;
  Count(index, Tier::kNvme, stored);
}

void Residency::SetZero(TileIndex index, bool zero) {
  Tile& tile = tiles_[index];
  const bool had_bytes = HasBytes(tile);
  tile.zero = zero;
  NoteBytes(index, had_bytes);
}

void Residency::NoteBytes(TileIndex index, bool had_bytes) {
  const bool has_bytes = HasBytes(tiles_[index]);
  if (has_bytes == had_bytes) return;
  const uint64_t hash = HashOf(index, 0);
  tiles_hash_ += has_bytes ? hash : -hash;
}

void Residency::Count(TileIndex index, Tier tier, bool held) {
  const Tile& tile = tiles_[index];
  if (tier != Tier::kNvme && IsHome(tile, tier))
    tiles_hash_ += HashOf(index, copy(tile, tier).offset + 1);
  for (Occupancy* room :
       {&stats_.tiers[static_cast<size_t>(tier)],
        &stats_.role_tiers[static_cast<size_t>(tile.role)][static_cast<size_t>(tier)]}) {
    held ? room->now_bytes += FrameBytes(tile) : room->now_bytes -= FrameBytes(tile);
    room->peak_bytes = std::max(room->peak_bytes, room->now_bytes);
  }
}

}  // namespace spillway::engine
