// SPDX-License-Identifier: Apache-2.0

#include "src/engine/pager/plan_frames.h"

#include <utility>

namespace spillway::engine {

PlanFrames::PlanFrames(std::shared_ptr<PlanFollower> plan, PageTable* pages, Jobs* jobs)
    : pages_(*pages), jobs_(*jobs), follower_(std::move(plan)) {
  follower_->Restart();
}

std::optional<uint64_t> PlanFrames::Allocate(TileIndex tile, Tier tier) {
  const auto planned = follower_->tiles().PlannedAt(tile, tier);
  const bool is_free =
      planned && pages_.arena(tier).AllocateAt(*planned, pages_[tile].frame_bytes(), tile);
  return is_free ? planned : std::nullopt;
}

bool PlanFrames::IsComing(TileIndex tile, Tier tier) {
  const auto planned = follower_->tiles().PlannedAt(tile, tier);
  return planned && MakeWay(tier, *planned, pages_[tile].frame_bytes());
}

bool PlanFrames::LiesAsPlanned(TileIndex tile, Tier tier) const {
  const Page& page = pages_[tile];
  const uint64_t offset = page.copy(tier).offset;
  if (page.is_reserved(tier)) return true;
  if (tier == Tier::kPinned && pages_.HasOwnPlace(*page.tile) && offset == page.tile->own_place)
    return true;
  return follower_->tiles().PlannedAt(tile, tier) == offset;
}

PlanFrames::Step PlanFrames::Take(TileIndex tile, Tier tier, uint64_t offset) {
  const Page& page = pages_[tile];
  const Copy& target = page.copy(tier);
  if (target.leaving) return Step::kWaiting;
  const bool is_held = target.state == Copy::State::kHeld;
  if (is_held && target.offset == offset) return Step::kDone;
  if (is_held && target.holder == nullptr && !page.is_reserved(tier)) pages_.DropFrame(tile, tier);
  if (target.state != Copy::State::kNone) return Step::kWaiting;
  if (!pages_.arena(tier).AllocateAt(offset, page.frame_bytes(), tile)) {
    (void)MakeWay(tier, offset, page.frame_bytes());
    return Step::kWaiting;
  }
  pages_.HoldFrame(tile, tier, offset, /*holder=*/nullptr);
  return Step::kDone;
}

// Evicts the copies in the range that do not lie as planned. Returns whether every copy there
// leaves, now or when its streams have drained.
bool PlanFrames::MakeWay(Tier tier, uint64_t offset, uint64_t size_bytes) {
  const Leases& leases = pages_.leases();
  bool all_leave = true;
  for (const TileIndex tile : pages_.arena(tier).TilesIn(offset, offset + size_bytes)) {
    if (LiesAsPlanned(tile, tier)) {
      all_leave = false;
      continue;
    }
    const bool is_held = leases.HasHolder(tile, tier);
    lacks_frame_ |= is_held;
    const bool drains = leases.held(tile, tier) > 0 && !is_held;
    all_leave &= SettleCopy(tile, tier) || pages_[tile].copy(tier).leaving || drains;
  }
  return all_leave;
}

// Returns a tile that was unsettled since the plan began, if there is one, else the next tile that
// may have been in memory then.
std::optional<TileIndex> PlanFrames::TakeUnsettled() {
  if (unsettled_.empty())
    return next_at_begin_ < pages_.num_tiles() ? std::optional(next_at_begin_++) : std::nullopt;
  const TileIndex tile = unsettled_.front();
  unsettled_.pop_front();
  return tile;
}

bool PlanFrames::Settle() {
  bool progress = false;
  for (; left_to_settle_ > 0 && !IsEnoughLeaving(); --left_to_settle_) {
    const std::optional<TileIndex> next = TakeUnsettled();
    if (!next) break;
    const TileIndex tile = *next;
    const Page& page = pages_[tile];
    if (page.copies[0].state == Copy::State::kNone && page.copies[1].state == Copy::State::kNone)
      continue;
    // LeaseEnded unsettles the tile again.
    if (pages_.leases().IsLeased(tile) || follower_->tiles().IsWanted(tile)) continue;
    if (page.is_moving() || follower_->tiles().HasOpDue(tile)) {
      busy_.Set(tile);
      continue;
    }
    for (const Tier tier : {Tier::kDevice, Tier::kPinned}) progress |= SettleCopy(tile, tier);
  }
  return progress;
}

// Starts the copy's eviction if it does not lie where the plan has it and may leave. Returns
// whether it did.
bool PlanFrames::SettleCopy(TileIndex tile, Tier tier) {
  Page& page = pages_[tile];
  Copy& copy = page.copy(tier);
  if (!copy.has_frame() || copy.leaving || copy.holder != nullptr || LiesAsPlanned(tile, tier))
    return false;
  if (page.written_before_copy && !page.has_newest(tier)) return false;  // it is about to be void
  if (tier == Tier::kPinned && !pages_.options().has_store && !page.zero) return false;
  if (pages_.leases().IsWritten(tile) || page.discard || stuck_.count(tile) > 0) return false;
  // A caller that waits for the tile gets it first; otherwise two waiting callers could take room
  // from each other for ever.
  if (jobs_.IsAwaited(tile) || pages_.leases().held(tile, tier) > 0) return false;
  copy.leaving = true;
  jobs_.Add(Job::Kind::kEvict, tile, tier);
  return true;
}

}  // namespace spillway::engine
