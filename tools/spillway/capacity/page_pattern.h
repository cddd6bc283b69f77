// SPDX-License-Identifier: Apache-2.0
//
// What a trial writes into a page: bytes that no other page, and no earlier version of this page,
// has, and that do not compress. So a page that was read from another's place shows, also if its
// checksum is right.

#ifndef SPILLWAY_TOOLS_SPILLWAY_CAPACITY_PAGE_PATTERN_H_
#define SPILLWAY_TOOLS_SPILLWAY_CAPACITY_PAGE_PATTERN_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

namespace spillway::capacity {

struct PagePattern {
  uint64_t seed = 0;
  uint32_t tensor = 0;
  uint64_t page = 0;
  uint64_t version = 0;  // 0: zeros, as a hole reads

  void Fill(std::span<std::byte> bytes) const;
  // Returns the offset of the first 8 bytes, or of the rest at the end, that differ; none if all
  // are right.
  std::optional<size_t> FirstDifference(std::span<const std::byte> bytes) const;
};

}  // namespace spillway::capacity

#endif  // SPILLWAY_TOOLS_SPILLWAY_CAPACITY_PAGE_PATTERN_H_
