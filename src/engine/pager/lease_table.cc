// SPDX-License-Identifier: Apache-2.0

#include "src/engine/pager/lease_table.h"

#include <utility>

namespace spillway::engine {

struct LeaseTable::Told {
  SharedLease lease;
  Told* next = nullptr;
};

LeaseTable::~LeaseTable() {
  for (Told* told = TakeTold(); told != nullptr;) Pop(&told);
  delete spare_.load();
}

void LeaseTable::Tell(const SharedLease& lease) {
  Told* told = spare_.exchange(nullptr, std::memory_order_acquire);
  if (told == nullptr) told = new Told;
  *told = {lease, told_.load(std::memory_order_relaxed)};
  while (!told_.compare_exchange_weak(told->next, told, std::memory_order_release,
                                      std::memory_order_relaxed)) {
  }
}

LeaseTable::Told* LeaseTable::TakeTold() {
  if (told_.load(std::memory_order_relaxed) == nullptr) return nullptr;
  Told* first = nullptr;
  for (Told* told = told_.exchange(nullptr, std::memory_order_acquire); told != nullptr;) {
    Told* const next = std::exchange(told->next, first);
    first = std::exchange(told, next);
  }
  return first;
}

SharedLease LeaseTable::Pop(Told** told) {
  Told* const first = *told;
  const SharedLease lease = first->lease;
  *told = first->next;
  delete spare_.exchange(first, std::memory_order_acq_rel);
  return lease;
}

void LeaseTable::Open(TileIndex tile, Tier tier, uint64_t offset) {
  Place& place = places_[tile][At(tier)];
  if (place.count.is_open()) return;
  // A reader whose lease is still held may be reading the offset, so it is not written if it is
  // unchanged.
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
