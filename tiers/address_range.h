// SPDX-License-Identifier: Apache-2.0
//
// Address space for an arena: anonymous, private, huge pages advised, and no memory behind it until
// it is touched. What commits the memory (a first touch, mlock) is the arenas' business.

#ifndef SPILLWAY_TIERS_ADDRESS_RANGE_H_
#define SPILLWAY_TIERS_ADDRESS_RANGE_H_

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"

namespace spillway::tiers {

// Alignment of every arena: a huge page of x86-64, so that the first bytes can lie in one.
inline constexpr uint64_t kArenaAlignmentBytes = uint64_t{2} << 20;
// The kernel's unit: what is mapped, locked and returned is whole multiples of it.
inline constexpr uint64_t kSmallPageBytes = 4096;

// Maps `size_bytes`, rounded up to 4 KiB, aligned to 2 MiB; nothing is mapped beside it, so that no
// huge page can commit memory past its end. A forked child does not have it. ResourceExhausted
// names `purpose`, the size and the errno if the kernel refuses the addresses; InvalidArgument for
// no bytes. A kernel without huge pages gives the range without.
absl::StatusOr<std::byte*> MapAddressRange(uint64_t size_bytes, std::string_view purpose);

// Returns a range and what was committed in it. Null is ignored.
void UnmapAddressRange(std::byte* range, uint64_t size_bytes);

}  // namespace spillway::tiers

#endif  // SPILLWAY_TIERS_ADDRESS_RANGE_H_
