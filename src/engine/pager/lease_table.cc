// SPDX-License-Identifier: Apache-2.0

#include "src/engine/pager/lease_table.h"

#include <algorithm>

namespace spillway::engine {

LeaseTable::~LeaseTable() { (void)TakeTold(); }

void LeaseTable::Tell(const SharedLease& lease) {
  auto* const told = new Told{lease, told_.load(std::memory_order_relaxed)};
  while (!told_.compare_exchange_weak(told->next, told, std::memory_order_release,
                                      std::memory_order_relaxed)) {
  }
}

std::vector<SharedLease> LeaseTable::TakeTold() {
  std::vector<SharedLease> leases;
  if (told_.load(std::memory_order_relaxed) == nullptr) return leases;
  for (const Told* told = told_.exchange(nullptr, std::memory_order_acquire); told != nullptr;) {
    leases.push_back(told->lease);
    const Told* const next = told->next;
    delete told;
    told = next;
  }
  std::reverse(leases.begin(), leases.end());
  return leases;
}

void LeaseTable::Open(TileIndex tile, Tier tier, uint64_t offset) {
  Place& place = places_[tile][At(tier)];
  if (place.count.is_open()) return;
  // Leases that are still held may be reading it, so it is not written again.
  if (place.offset != offset) place.offset = offset;
  place.count.Open();
}

bool LeaseTable::Close(TileIndex tile) {
  const bool device = count(tile, Tier::kDevice).Close();
  const bool pinned = count(tile, Tier::kPinned).Close();
  return device && pinned;
}

bool LeaseTable::CloseAll() {
  bool none = true;
  for (TileIndex tile = 0; tile < places_.size(); ++tile) none &= Close(tile);
  return none;
}

}  // namespace spillway::engine
