// SPDX-License-Identifier: Apache-2.0

#include "src/engine/pager/lease_table.h"

#include <utility>

namespace spillway::engine {

struct LeaseTable::LogEntry {
  SharedLease lease;
  LogEntry* next = nullptr;
};

LeaseTable::~LeaseTable() {
  for (LogEntry* entry = TakeLog(); entry != nullptr;) Pop(&entry);
  delete spare_.load();
}

void LeaseTable::Log(const SharedLease& lease) {
  LogEntry* entry = spare_.exchange(nullptr, std::memory_order_acquire);
  if (entry == nullptr) entry = new LogEntry;
  *entry = {lease, log_.load(std::memory_order_relaxed)};
  while (!log_.compare_exchange_weak(entry->next, entry, std::memory_order_release,
                                     std::memory_order_relaxed)) {
  }
}

LeaseTable::LogEntry* LeaseTable::TakeLog() {
  if (log_.load(std::memory_order_relaxed) == nullptr) return nullptr;
  LogEntry* first = nullptr;
  for (LogEntry* entry = log_.exchange(nullptr, std::memory_order_acquire); entry != nullptr;) {
    LogEntry* const next = std::exchange(entry->next, first);
    first = std::exchange(entry, next);
  }
  return first;
}

SharedLease LeaseTable::Pop(LogEntry** entry) {
  LogEntry* const first = *entry;
  const SharedLease lease = first->lease;
  *entry = first->next;
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
