// SPDX-License-Identifier: Apache-2.0
//
// Checks, before a benchmark makes anything, that the disks and the memory have room for it.

#ifndef SPILLWAY_TOOLS_SPILLWAY_BENCH_IO_ROOM_H_
#define SPILLWAY_TOOLS_SPILLWAY_BENCH_IO_ROOM_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace spillway::bench_io {

// Room for a store's catalog and for what a folder takes beside its data.
inline constexpr uint64_t kStoreSlackBytes = uint64_t{512} << 20;

// Checks that each folder has room for `bytes_in_each`; folders on one file system add up. A tenth
// of the free bytes must stay free. ResourceExhausted, with `cure` at the end ("give a smaller
// --size"), if one has too little.
absl::Status CheckRoom(std::span<const std::string> folders, uint64_t bytes_in_each,
                       std::string_view cure);

// Returns the memory that each of `num_users` may take of the bytes available, at most
// `wanted_bytes`: together at most eight tenths. `note` (may be empty) is called if it is less.
// ResourceExhausted if it is less than 64 MiB.
absl::StatusOr<uint64_t> CutToAvailableMemory(uint64_t wanted_bytes, int num_users,
                                              const std::function<void(std::string_view)>& note);

}  // namespace spillway::bench_io

#endif  // SPILLWAY_TOOLS_SPILLWAY_BENCH_IO_ROOM_H_
