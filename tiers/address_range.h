// SPDX-License-Identifier: Apache-2.0
//
// Address space for an arena: anonymous, private, with huge pages advised and without memory until
// it is touched. The arenas commit the memory, by a first touch or mlock.

#ifndef SPILLWAY_TIERS_ADDRESS_RANGE_H_
#define SPILLWAY_TIERS_ADDRESS_RANGE_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"

namespace spillway::tiers {

// Alignment of every arena: the size of a huge page of x86-64, so that an arena can start with one.
inline constexpr uint64_t kArenaAlignmentBytes = uint64_t{2} << 20;
// The kernel's page size. Memory is mapped, locked and unmapped in multiples of it.
inline constexpr uint64_t kSmallPageBytes = 4096;

// Maps `size_bytes`, rounded up to 4 KiB and aligned to 2 MiB. The ends that the alignment does not
// need are unmapped, so that no huge page can commit memory past the end of the range. A forked
// child does not inherit the range. ResourceExhausted, with `purpose`, the size and the errno, if
// the kernel refuses the addresses; InvalidArgument for 0 bytes. If the kernel has no huge pages,
// the range is made without them.
absl::StatusOr<std::byte*> MapAddressRange(uint64_t size_bytes, std::string_view purpose);

// Unmaps a range and frees the memory committed in it. Null is ignored.
void UnmapAddressRange(std::byte* range, uint64_t size_bytes);

}  // namespace spillway::tiers

#endif  // SPILLWAY_TIERS_ADDRESS_RANGE_H_
