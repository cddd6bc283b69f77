// SPDX-License-Identifier: Apache-2.0

#include "src/engine/pager/use_queue.h"

#include <algorithm>

namespace spillway::engine {

void UseQueue::Declare(TileIndex tile, Tier tier, Access access) {
  const uint64_t position = first_ + entries_.size();
  entries_.push_back({tile, tier, access, kNever});
  Chain& chain = chains_[Key(tile, tier)];
  if (chain.first == kNever) {
    chain.first = position;
  } else {
    entries_[chain.last - first_].next_same = position;
  }
  chain.last = position;
}

void UseQueue::Clear() {
  first_ += entries_.size();
  cursor_ = first_;
  entries_.clear();
  chains_.clear();
}

void UseQueue::OnUse(TileIndex tile, Tier tier) {
  const uint64_t position = NextUse(tile, tier);
  if (position == kNever) return;
  if (position - first_ > kMaxSkip && ++num_early_ <= kMaxSkip) return;
  num_early_ = 0;
  while (first_ <= position) {
    const Entry& entry = entries_.front();
    auto chain = chains_.find(Key(entry.tile, entry.tier));
    chain->second.first = entry.next_same;
    if (entry.next_same == kNever) chains_.erase(chain);
    entries_.pop_front();
    ++first_;
  }
  cursor_ = std::max(cursor_, first_);
}

uint64_t UseQueue::NextUse(TileIndex tile, Tier tier) const {
  auto chain = chains_.find(Key(tile, tier));
  return chain == chains_.end() ? kNever : chain->second.first;
}

const UseQueue::Entry* UseQueue::PrefetchCandidate() const {
  if (cursor_ - first_ >= entries_.size()) return nullptr;
  return &entries_[cursor_ - first_];
}

}  // namespace spillway::engine
