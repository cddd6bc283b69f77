// SPDX-License-Identifier: Apache-2.0

#include "src/engine/following/plan_room.h"

#include <algorithm>
#include <array>

#include "src/base/bytes.h"
#include "src/plan/retention.h"

namespace spillway::engine {

using plan::TileIndex;

uint64_t PlanRoom::FrameBytes(TileIndex tile) const {
  return base::RoundUp(step_.trace.tiles[tile].size_bytes, step_.plan.options.frame_alignment);
}

// Adds up what the plan has at each position. Reserved frames take none of the shared room, so they
// are left out of these sums and of the capacity.
PlanRoom::PlanRoom(const StepPlan& step, plan::Stop stop)
    : step_(step), num_positions_(step.trace.events.size() * uint64_t{plan::kPositionsPerEvent}) {
  const plan::Plan& plan = step_.plan;
  const auto bytes_of = [&](TileIndex tile, Tier tier) {
    return step_.trace.tiles[tile].has_reserved_frame(tier) ? 0 : FrameBytes(tile);
  };
  std::array<uint64_t, 2> now = {};
  for (const plan::Place& place : plan.seam) {
    if (stop) return;
    now[At(place.tier)] += bytes_of(place.tile, place.tier);
  }
  std::array<std::vector<uint64_t>, 2> bytes;
  for (std::vector<uint64_t>& of_tier : bytes) plan::Fill(&of_tier, num_positions_, stop);
  uint32_t op = 0;
  for (uint32_t position = 0; position < num_positions_; ++position) {
    if (stop) return;
    std::array<uint64_t, 2> most = now;
    for (; op < plan.ops.size() && plan.ops[op].position == position; ++op) {
      const plan::Op& at = plan.ops[op];
      const size_t tier = At(at.tier);
      if (at.kind == plan::Transfer::kDrop) {
        now[tier] -= bytes_of(at.tile, at.tier);
      } else if (at.kind != plan::Transfer::kWrite) {
        now[tier] += bytes_of(at.tile, at.tier);
      }
      most[tier] = std::max(most[tier], now[tier]);
    }
    for (const size_t tier : {0, 1}) bytes[tier][position] = most[tier];
  }
  const plan::PlanOptions& options = plan.options;
  const auto room = [](uint64_t budget, uint64_t taken) {
    return budget - std::min(budget, taken);
  };
  room_.emplace_back(
      bytes[0], room(options.device_bytes, options.device_reserve_bytes + plan.reserved_bytes[0]));
  if (stop) return;
  room_.emplace_back(
      bytes[1], room(options.pinned_bytes, options.pinned_reserve_bytes + plan.reserved_bytes[1]));
  room_at_begin_ = room_;
  ahead_.Reserve(plan.ops.size());
}

void PlanRoom::Restart() {
  room_ = room_at_begin_;
  ahead_.Clear();
  begins_.clear();
  now_ = 0;
  unfit_ = {};
}

PlanRoom::Position PlanRoom::PositionOf(Count op) const {
  return step_.PeriodOf(op) * num_positions_ + step_.OpAt(op).position;
}

void PlanRoom::PassTo(Count event) {
  const uint64_t num_events = step_.trace.events.size();
  const Position now = event / num_events * num_positions_ +
                       plan::BeforeEvent(static_cast<uint32_t>(event % num_events));
  if (now == now_) return;
  now_ = now;
  unfit_ = {};
  while (!ahead_.empty() && PositionOf(ahead_.top().op) <= now_) Pop();
}

void PlanRoom::Apply(const Ahead& ahead, bool undo) {
  const plan::Op& op = step_.OpAt(ahead.op);
  plan::RoomTree& room = room_[At(op.tier)];
  const uint32_t begin = InPeriod(ahead.begin), end = InPeriod(PositionOf(ahead.op));
  const bool takes = op.kind != plan::Transfer::kDrop;
  takes != undo ? room.Put(begin, end, FrameBytes(op.tile))
                : room.Remove(begin, end, FrameBytes(op.tile));
  unfit_ = {};
}

void PlanRoom::Pop() {
  const Ahead ahead = ahead_.top();
  ahead_.pop();
  Apply(ahead, /*undo=*/true);
  const auto entry = std::ranges::lower_bound(begins_, ahead.begin, {},
                                              [](const auto& begin) { return begin.first; });
  --entry->second;
  while (!begins_.empty() && begins_.front().second == 0) begins_.pop_front();
}

bool PlanRoom::Has(Count count) {
  const plan::Op& op = step_.OpAt(count);
  const Position position = PositionOf(count);
  if (!plan::TakesFrame(op.kind) || step_.trace.tiles[op.tile].has_reserved_frame(op.tier) ||
      position <= now_)
    return true;
  const uint64_t bytes = FrameBytes(op.tile);
  Unfit& unfit = unfit_[static_cast<size_t>(op.kind)];
  if (op.tier == unfit.tier && position >= unfit.position && bytes >= unfit.bytes) return false;
  // The tree has the positions of one period, and entries ahead begin at `oldest` or later. So it
  // answers only for positions that are less than a period after `oldest`.
  const Position oldest = begins_.empty() ? now_ : begins_.front().first;
  if (position - oldest < num_positions_ &&
      room_[At(op.tier)].Fits(InPeriod(now_), InPeriod(position), bytes)) {
    return true;
  }
  unfit = {.tier = op.tier, .position = position, .bytes = bytes};
  return false;
}

void PlanRoom::Begun(Count count) {
  const plan::Op& op = step_.OpAt(count);
  const Position position = PositionOf(count);
  if (op.kind == plan::Transfer::kWrite || position <= now_ || position - now_ >= num_positions_)
    return;
  if (step_.trace.tiles[op.tile].has_reserved_frame(op.tier)) return;
  const Ahead ahead{.op = count, .begin = now_};
  Apply(ahead, /*undo=*/false);
  ahead_.push(ahead);
  if (begins_.empty() || begins_.back().first != now_) begins_.emplace_back(now_, 0);
  ++begins_.back().second;
}

}  // namespace spillway::engine
