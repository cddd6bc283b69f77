// SPDX-License-Identifier: Apache-2.0

#include "tiers/registered_ranges.h"

#include <algorithm>
#include <iterator>

namespace spillway::tiers {

void RegisteredRanges::Add(std::span<const std::byte> range) {
  base::MutexLock lock(&mutex_);
  sizes_[range.data()] = range.size();
}

void RegisteredRanges::Remove(const std::byte* start) {
  base::MutexLock lock(&mutex_);
  sizes_.erase(start);
}

uint64_t RegisteredRanges::CopyBytes(const std::byte* memory, uint64_t size_bytes) const {
  base::MutexLock lock(&mutex_);
  const auto after = sizes_.upper_bound(memory);
  if (after == sizes_.begin()) return size_bytes;
  const auto& [start, range_bytes] = *std::prev(after);
  const auto offset = static_cast<uint64_t>(memory - start);
  return offset < range_bytes ? std::min(size_bytes, range_bytes - offset) : size_bytes;
}

}  // namespace spillway::tiers
