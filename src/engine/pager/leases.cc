// SPDX-License-Identifier: Apache-2.0

#include "src/engine/pager/leases.h"

#include "src/base/check.h"

namespace spillway::engine {

void Leases::BeginDrain(TileIndex tile, Tier tier, Access access, StreamId stream) {
  ++num_draining_;
  ++num_ended_;
  Busy& busy = busy_[tile];
  ++busy.draining[At(tier)];
  if (!Writes(access)) return;
  busy.writer = false;
  busy.is_mixed |= busy.written_drains > 0 && (busy.stream != stream || busy.tier != tier);
  ++busy.written_drains;
  busy.stream = stream;
  busy.tier = tier;
}

void Leases::End(TileIndex tile, Tier tier, Access access, bool drained) {
  SPILLWAY_CHECK(held(tile, tier) > 0);
  --held_[tile][At(tier)];
  --num_held_;
  ++num_ended_;
  if (!drained && !Writes(access)) return;
  const auto found = busy_.find(tile);
  Busy& busy = found->second;
  if (drained) {
    --num_draining_;
    --busy.draining[At(tier)];
    if (Writes(access)) --busy.written_drains;
    busy.is_mixed &= busy.written_drains > 0;
  } else {
    busy.writer = false;
  }
  if (busy.is_over()) busy_.erase(found);
}

bool Leases::Admits(TileIndex tile, Tier tier, Access access, StreamId stream) const {
  const auto found = busy_.find(tile);
  const Busy none, &busy = found == busy_.end() ? none : found->second;
  if (busy.writer) return false;
  const bool follows = busy.written_drains > 0;
  if (follows && (busy.is_mixed || busy.stream != stream || busy.tier != tier)) return false;
  if (!Writes(access) || !IsLeased(tile)) return true;
  const uint32_t drains = busy.draining[0] + busy.draining[1];
  return follows && drains == busy.written_drains &&
         drains == held(tile, Tier::kDevice) + held(tile, Tier::kPinned);
}

uint32_t Leases::draining(TileIndex tile, Tier tier) const {
  const auto found = busy_.find(tile);
  return found == busy_.end() ? 0 : found->second.draining[At(tier)];
}

}  // namespace spillway::engine
