// SPDX-License-Identifier: Apache-2.0
//
// The page checksum: XXH3-64 with seed 0, as io/FORMAT.md says. It detects torn and corrupted
// pages; it does not guard against forgery.

#ifndef SPILLWAY_IO_CHECKSUM_H_
#define SPILLWAY_IO_CHECKSUM_H_

#include <cstddef>
#include <cstdint>
#include <span>

namespace spillway::io {

// Returns the checksum of `bytes`, which may have any size (0 included) and any alignment.
// Thread-safe.
uint64_t Checksum(std::span<const std::byte> bytes);

}  // namespace spillway::io

#endif  // SPILLWAY_IO_CHECKSUM_H_
