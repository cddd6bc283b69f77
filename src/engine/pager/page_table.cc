// SPDX-License-Identifier: Apache-2.0

#include "src/engine/pager/page_table.h"

#include <algorithm>
#include <utility>

#include "src/base/check.h"

namespace spillway::engine {

bool Page::GoesToReservedFrame(Tier tier) const {
  return is_reserved(Other(tier)) && copy(Other(tier)).state == Copy::State::kHeld;
}

bool Page::MayForget(Tier tier) const {
  const Copy& other = copy(Other(tier));
  // If both copies leave, the one in pinned memory leaves last.
  const bool stays = other.is_ready() && (tier == Tier::kDevice || !other.leaving);
  return zero || copy(tier).state == Copy::State::kHeld || stays ||
         (stored && !GoesToReservedFrame(tier));
}

PageTable::PageTable(PagerOptions options)
    : options_(std::move(options)),
      arenas_{ArenaMap(options_.device_bytes), ArenaMap(options_.pinned_bytes)},
      own_begin_(arena(Tier::kPinned).size_bytes()) {}

TileIndex PageTable::AddTile(uint64_t size_bytes, Role role, bool transient, bool stored,
                             StorePlace place) {
  const TileIndex tile = num_tiles();
  Tile& is = tiles_.emplace_back();
  Page& page = pages_.emplace_back();
  page.tile = &is;
  leases_.AddTile();
  is.size_bytes = size_bytes;
  is.role = role;
  is.rest = page.rest = options_.placement[static_cast<size_t>(role)];
  is.transient = transient;
  is.is_small = size_bytes <= options_.small_bytes;
  is.place = place;
  frames_bytes_ += is.frame_bytes();
  if (HasOwnPlace(is)) is.own_place = own_begin_ -= is.frame_bytes();
  if (stored) {
    SetZero(tile, false);
    SetStored(tile, true);
  }
  return tile;
}

// --- Queries ---

bool PageTable::CanLease(const Job& job) const {
  const Page& page = pages_[job.tile];
  // Until the end of the copy is reported, the other copies, which are stale, still count as
  // current.
  return !page.discard && !page.written_before_copy &&
         leases_.Admits(job.tile, job.tier, job.access, job.stream) &&
         !(Writes(job.access) && page.is_leaving());
}

// --- Frames ---

void PageTable::HoldFrame(TileIndex tile, Tier tier, uint64_t offset, const Job* holder) {
  Copy& copy = pages_[tile].copy(tier);
  copy.state = Copy::State::kHeld;
  copy.offset = offset;
  copy.holder = holder;
  Count(tile, tier, true);
  if (!pages_[tile].is_reserved(tier)) return;
  tiles_[tile].reserved_frame = offset;
  ++reserved_changes_;
}

void PageTable::DropFrame(TileIndex tile, Tier tier, const ClaimWindow& claim) {
  Copy& copy = pages_[tile].copy(tier);
  SPILLWAY_CHECK(leases_.held(tile, tier) == 0);
  if (copy.prefetched) ++stats_.prefetch_wasted;
  const uint64_t offset = copy.offset;
  copy = Copy{};
  ++endings_;
  if (pages_[tile].is_reserved(tier)) {  // the bytes are dropped, the frame stays
    SPILLWAY_CHECK(claim.size_bytes == 0);
    copy.state = Copy::State::kHeld;
    copy.offset = offset;
    return;
  }
  Count(tile, tier, false);
  arena(tier).FreeInto(offset, claim.offset, claim.size_bytes, claim.claimant);
}

// --- Bytes ---

void PageTable::VoidOtherCopies(TileIndex tile, Tier keep) {
  Page& page = pages_[tile];
  const Tier other = Other(keep);
  Copy& stale = page.copy(other);
  SPILLWAY_CHECK(!stale.leaving);  // its eviction would free the frame once more
  if (stale.is_ready() && other == Tier::kPinned && !options_.has_store) {
    // Without a store, the frame is kept: the bytes have no other place.
    stale.state = Copy::State::kHeld;
  } else if (stale.state != Copy::State::kNone && options_.has_store) {
    // A claim in progress ends with an idle frame, which the next claim may take.
    if (stale.state != Copy::State::kClaiming) DropFrame(tile, other);
  } else if (stale.is_ready()) {
    DropFrame(tile, other);
  }
  SetZero(tile, false);
  if (!page.stored) return;
  SetStored(tile, false);
  if (page.tile->transient) actions_.push_back({.kind = Action::Kind::kForget, .tile = tile});
}

void PageTable::Discard(TileIndex tile) {
  pages_[tile].discard = true;
  NoteBytes(tile);
}

bool PageTable::DropIfDiscarded(TileIndex tile) {
  Page& page = pages_[tile];
  if (!page.discard || page.is_moving() || leases_.IsLeased(tile)) return false;
  ++endings_;
  SetZero(tile, true);
  page.discard = false;
  if (page.is_gone && page.tile->has_reserved_frame()) {
    // The reserved frame becomes an ordinary one, which is freed with the copy.
    page.rest.reset();
    tiles_[tile].reserved_frame = Tile::kGone;
    ++reserved_changes_;
  }
  for (const Tier tier : {Tier::kDevice, Tier::kPinned}) {
    const Copy& copy = page.copy(tier);
    if (copy.has_frame() && !copy.leaving) DropFrame(tile, tier);
  }
  if (page.stored) {
    SetStored(tile, false);
    actions_.push_back({.kind = Action::Kind::kForget, .tile = tile});
  }
  return true;
}

void PageTable::SetWrittenBeforeCopy(TileIndex tile, bool written) {
  pages_[tile].written_before_copy = written;
  NoteBytes(tile);
}

void PageTable::SetStored(TileIndex tile, bool stored) {
  if (std::exchange(pages_[tile].stored, stored) == stored) return;
  Count(tile, Tier::kNvme, stored);
  NoteBytes(tile);
}

void PageTable::SetZero(TileIndex tile, bool zero) {
  pages_[tile].zero = zero;
  NoteBytes(tile);
}

void PageTable::NoteBytes(TileIndex tile) {
  const Page& page = pages_[tile];
  with_bytes_.Set(tile, page.has_bytes());
  to_commit_.Set(
      tile, !page.tile->transient && (page.written_before_copy || (!page.zero && !page.stored)));
}

void PageTable::Count(TileIndex tile, Tier tier, bool held) {
  const Page& page = pages_[tile];
  for (Occupancy* room :
       {&stats_.tiers[static_cast<size_t>(tier)],
        &stats_.role_tiers[static_cast<size_t>(page.tile->role)][static_cast<size_t>(tier)]}) {
    held ? room->now_bytes += page.frame_bytes() : room->now_bytes -= page.frame_bytes();
    room->peak_bytes = std::max(room->peak_bytes, room->now_bytes);
  }
}

void PageTable::Used(TileIndex tile, Tier tier) {
  ++stats_.acquires;
  pages_[tile].copy(tier).prefetched = false;
  pages_[tile].last_use = ++clock_;
}

void PageTable::Reset(const std::function<bool(TileIndex)>& is_stored) {
  arenas_ = {ArenaMap(options_.device_bytes), ArenaMap(options_.pinned_bytes)};
  for (TileIndex tile = 0; tile < num_tiles(); ++tile) {
    Page& page = pages_[tile];
    ForgetCopies(tile);
    page.queued = false;
    if (page.tile->transient && page.stored)
      actions_.push_back({.kind = Action::Kind::kForget, .tile = tile});
    SetStored(tile, !page.tile->transient && !page.is_gone && is_stored(tile));
    SetZero(tile, !page.stored);
  }
  (void)failures_.TakeUnreported();  // the bytes that could not be written are not needed any more
  failures_.WriteEnded(/*ok=*/true);
}

void PageTable::ForgetCopies(TileIndex tile) {
  for (const Tier tier : {Tier::kDevice, Tier::kPinned}) {
    Page& page = pages_[tile];
    Copy& copy = page.copy(tier);
    if (copy.prefetched) ++stats_.prefetch_wasted;
    const Copy before = std::exchange(copy, Copy{});
    if (!before.has_frame()) continue;
    if (page.is_reserved(tier)) {
      const bool is_free = arena(tier).AllocateAt(before.offset, page.frame_bytes(), tile);
      SPILLWAY_CHECK(is_free);
      copy.state = Copy::State::kHeld;
      copy.offset = before.offset;
    } else {
      Count(tile, tier, false);
    }
  }
}

}  // namespace spillway::engine
