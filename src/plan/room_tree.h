// SPDX-License-Identifier: Apache-2.0
//
// A tree of how full a tier is at each position of a period. Queries and changes cover ranges of
// positions. A long period is divided into stretches, each of which counts as full as its fullest
// position.

#ifndef SPILLWAY_PLAN_ROOM_TREE_H_
#define SPILLWAY_PLAN_ROOM_TREE_H_

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <vector>

namespace spillway::plan {

class RoomTree {
 public:
  // Begins with the given bytes at each position.
  RoomTree(const std::vector<uint64_t>& bytes, uint64_t capacity)
      : num_positions_(static_cast<uint32_t>(bytes.size())),
        stretch_((num_positions_ + kMaxStretches - 1) / kMaxStretches),
        capacity_(static_cast<int64_t>(
            std::min<uint64_t>(capacity, std::numeric_limits<int64_t>::max() / 2))),
        size_(std::bit_ceil((num_positions_ + stretch_ - 1) / stretch_)),
        nodes_(2 * size_) {
    for (uint32_t p = 0, leaf = size_; p < num_positions_; ++leaf) {
      const uint32_t end = std::min(num_positions_, p + stretch_);
      int64_t& most = nodes_[leaf].most;
      for (; p < end; ++p) most = std::max(most, static_cast<int64_t>(bytes[p]));
    }
    for (uint32_t node = size_ - 1; node > 0; --node) nodes_[node].most = MostBelow(node);
  }

  // Adds bytes from `begin` up to, not including, `end`, if they fit; returns whether they do. If
  // `end` is less than `begin`, the range goes over the period's end to its start.
  bool Add(uint32_t begin, uint32_t end, uint64_t bytes) {
    if (begin == end) return true;
    if (!Fits(begin, end, bytes)) return false;
    Put(begin, end, bytes);
    return true;
  }
  // Adds the bytes whether they fit or not.
  void Put(uint32_t begin, uint32_t end, uint64_t bytes) {
    if (begin == end) return;
    ForParts(begin, end, [&](uint32_t first, uint32_t last) {
      Change(1, 0, size_ - 1, first, last, static_cast<int64_t>(bytes));
    });
  }
  // Whether the bytes would fit in the range in addition. REQUIRES: begin != end.
  bool Fits(uint32_t begin, uint32_t end, uint64_t bytes) const {
    const int64_t limit = capacity_ - static_cast<int64_t>(bytes);
    bool fits = true;
    ForParts(begin, end, [&](uint32_t first, uint32_t last) {
      fits = fits && IsAtMost(limit, 1, 0, size_ - 1, first, last);
    });
    return fits;
  }
  // Removes bytes that were added.
  void Remove(uint32_t begin, uint32_t end, uint64_t bytes) {
    Put(begin, end, -bytes);  // modulo 2^64
  }

 private:
  static constexpr uint32_t kMaxStretches = 1 << 14;

  // Calls visit(first, last) for each run of stretches in the range; both ends are included.
  template <typename Visit>
  void ForParts(uint32_t begin, uint32_t end, const Visit& visit) const {
    if (begin < end) return visit(begin / stretch_, (end - 1) / stretch_);
    const uint32_t last = end == 0 ? 0 : (end - 1) / stretch_;
    const uint32_t first = begin / stretch_;
    const uint32_t seam = (num_positions_ - 1) / stretch_;
    if (end > 0 && begin < num_positions_ && first <= last) return visit(0, seam);
    if (begin < num_positions_) visit(first, seam);
    if (end > 0) visit(0, last);
  }

  int64_t MostBelow(uint32_t node) const {
    return std::max(nodes_[2 * node].most, nodes_[2 * node + 1].most);
  }

  // Whether no stretch of the range counts as fuller than `limit`, without what the nodes above
  // this one add. Most questions are answered high in the tree.
  bool IsAtMost(int64_t limit, uint32_t node, uint32_t low, uint32_t high, uint32_t first,
                uint32_t last) const {
    if (nodes_[node].most <= limit) return true;
    if (first <= low && high <= last) return false;
    const uint32_t middle = (low + high) / 2;
    limit -= nodes_[node].added;
    return (first > middle || IsAtMost(limit, 2 * node, low, middle, first, last)) &&
           (last <= middle || IsAtMost(limit, 2 * node + 1, middle + 1, high, first, last));
  }

  void Change(uint32_t node, uint32_t low, uint32_t high, uint32_t first, uint32_t last,
              int64_t bytes) {
    if (first <= low && high <= last) {
      nodes_[node].most += bytes;
      nodes_[node].added += bytes;
      return;
    }
    const uint32_t middle = (low + high) / 2;
    if (first <= middle) Change(2 * node, low, middle, first, last, bytes);
    if (last > middle) Change(2 * node + 1, middle + 1, high, first, last, bytes);
    nodes_[node].most = MostBelow(node) + nodes_[node].added;
  }

  // Bytes may have been added at the nodes above a node and removed at those below it, so the value
  // of a node alone may be negative.
  struct Node {
    int64_t most = 0;   // the most bytes below it, without what the nodes above it add
    int64_t added = 0;  // bytes added to everything below it
  };

  uint32_t num_positions_;
  uint32_t stretch_;
  int64_t capacity_;
  uint32_t size_;  // leaves, a power of two
  std::vector<Node> nodes_;
};

}  // namespace spillway::plan

#endif  // SPILLWAY_PLAN_ROOM_TREE_H_
