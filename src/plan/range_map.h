// SPDX-License-Identifier: Apache-2.0
//
// A value for each byte range of an arena: the one that was set last. Ranges that were never set
// have none.

#ifndef SPILLWAY_PLAN_RANGE_MAP_H_
#define SPILLWAY_PLAN_RANGE_MAP_H_

#include <cstdint>
#include <iterator>

#include "absl/container/btree_map.h"

namespace spillway::plan {

template <typename Value>
class RangeMap {
 public:
  // Sets the value from `begin` up to, not including, `end`. REQUIRES: begin < end.
  void Set(uint64_t begin, uint64_t end, Value value) {
    Cut(begin);
    Cut(end);
    ranges_.erase(ranges_.lower_bound(begin), ranges_.lower_bound(end));
    ranges_[begin] = {end, value};
  }
  // Calls visit(value) for each value in a range, in order.
  template <typename Visit>
  void ForRange(uint64_t begin, uint64_t end, const Visit& visit) const {
    auto it = ranges_.upper_bound(begin);
    if (it != ranges_.begin() && std::prev(it)->second.end > begin) --it;
    for (; it != ranges_.end() && it->first < end; ++it) visit(it->second.value);
  }

 private:
  struct Range {
    uint64_t end = 0;
    Value value = {};
  };
  // Divides the range that contains both sides of `at`.
  void Cut(uint64_t at) {
    const auto it = ranges_.lower_bound(at);
    if (it == ranges_.begin() || std::prev(it)->second.end <= at) return;
    const Range rest = std::prev(it)->second;
    std::prev(it)->second.end = at;
    ranges_[at] = rest;
  }
  absl::btree_map<uint64_t, Range> ranges_;  // by begin
};

}  // namespace spillway::plan

#endif  // SPILLWAY_PLAN_RANGE_MAP_H_
