// SPDX-License-Identifier: Apache-2.0
//
// What a disk may lose when power goes: every write since the last sync, sector by sector. For
// FaultyIoEngine; the files are real ones and their sectors are put back.
//
// One idea: an unsynced sector holds, after power went, what it held at the sync or what any write
// since put there, independently of all others. So writes are dropped, reordered and torn.

#ifndef SPILLWAY_IO_UNSYNCED_WRITES_H_
#define SPILLWAY_IO_UNSYNCED_WRITES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <random>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace spillway::io {

inline constexpr size_t kSectorBytes = 512;

// Writes some of the sectors of `bytes`, at least one not, none if there is but one; the others
// keep what the file has there. Offset, size and buffer are multiples of kIoAlignment.
absl::Status WriteTorn(int fd, uint64_t offset, std::span<const std::byte> bytes,
                       std::mt19937_64& random);

// Thread-compatible.
class UnsyncedWrites {
 public:
  // Call before the bytes are written. Multiples of kIoAlignment.
  absl::Status Note(int fd, uint64_t offset, std::span<const std::byte> bytes);
  // All of it is durable.
  void Forget() { sectors_.clear(); }
  // Puts each sector into one of its possible states, then forgets. REQUIRES: no write in flight.
  absl::Status PowerCut(std::mt19937_64& random);

 private:
  // By file and number of the sector: its contents in the order in which they came.
  std::map<std::pair<int, uint64_t>, std::vector<std::vector<std::byte>>> sectors_;
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_UNSYNCED_WRITES_H_
