// SPDX-License-Identifier: Apache-2.0

#include "src/plan/frames.h"

#include <algorithm>
#include <iterator>

#include "src/base/check.h"

namespace spillway::plan {

Frames::Frames(uint64_t capacity, const std::vector<uint64_t>& size_bytes)
    : size_bytes_(size_bytes), offset_(size_bytes.size(), kNowhere) {
  AddFree(0, capacity);
}

uint64_t Frames::FirstFree(uint64_t from, uint64_t bytes) const {
  auto range = free_.upper_bound(from);
  if (range != free_.begin()) --range;
  for (; range != free_.end(); ++range) {
    const uint64_t offset = std::max(from, range->first);
    if (offset + bytes <= range->first + range->second) return offset;
  }
  return kNowhere;
}

void Frames::Occupy(uint64_t offset, TileIndex tile) {
  const uint64_t bytes = size_bytes_[tile];
  const auto [begin, size_bytes] = *std::prev(free_.upper_bound(offset));
  const uint64_t end = begin + size_bytes;
  SPILLWAY_CHECK(begin <= offset && offset + bytes <= end);
  RemoveFree(begin, size_bytes);
  AddFree(begin, offset - begin);
  AddFree(offset + bytes, end - offset - bytes);
  held_[offset] = tile;
  offset_[tile] = offset;
}

void Frames::Free(TileIndex tile) {
  uint64_t begin = std::exchange(offset_[tile], kNowhere);
  uint64_t end = begin + size_bytes_[tile];
  held_.erase(begin);
  if (const auto next = free_.find(end); next != free_.end()) {
    end += next->second;
    RemoveFree(next->first, next->second);
  }
  if (auto before = free_.lower_bound(begin); before != free_.begin()) {
    --before;
    if (before->first + before->second == begin) {
      begin = before->first;
      RemoveFree(begin, before->second);
    }
  }
  AddFree(begin, end - begin);
}

void Frames::AddFree(uint64_t offset, uint64_t size_bytes) {
  if (size_bytes == 0) return;
  free_.emplace(offset, size_bytes);
  free_by_size_.emplace(size_bytes, offset);
}

void Frames::RemoveFree(uint64_t offset, uint64_t size_bytes) {
  free_.erase(offset);
  free_by_size_.erase({size_bytes, offset});
}

}  // namespace spillway::plan
