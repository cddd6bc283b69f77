// SPDX-License-Identifier: Apache-2.0
//
// The page checksum: XXH3-64 with seed 0, as io/FORMAT.md says. It tells a page from a torn or
// rotten one; it does not guard against forgery.

#ifndef SPILLWAY_IO_CHECKSUM_H_
#define SPILLWAY_IO_CHECKSUM_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace spillway::io {

// Any size, empty included; any alignment; any thread.
uint64_t Checksum(std::span<const std::byte> bytes);

}  // namespace spillway::io

#endif  // SPILLWAY_IO_CHECKSUM_H_
