// SPDX-License-Identifier: Apache-2.0
//
// Simulates what a disk may lose in a power failure: every write since the last sync, sector by
// sector. FaultyIoEngine uses it on real files, whose sectors it overwrites.
//
// One idea: after a power failure an unsynced sector holds what it held at the sync, or what one of
// the writes since then put there, independently of all other sectors. So writes are dropped,
// reordered and torn.

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

// Writes a random subset of the sectors of `bytes`: at least one is left out, so a single sector is
// never written. The sectors left out keep their contents in the file. REQUIRES: offset, size and
// buffer are multiples of kIoAlignment.
absl::Status WriteTorn(int fd, uint64_t offset, std::span<const std::byte> bytes,
                       std::mt19937_64& random);

// Thread-compatible.
class UnsyncedWrites {
 public:
  // Records a write and what it replaces. REQUIRES: called before the bytes are written; offset and
  // size are multiples of kIoAlignment.
  absl::Status Note(int fd, uint64_t offset, std::span<const std::byte> bytes);
  // Drops all records, because the writes are durable.
  void Forget() { sectors_.clear(); }
  // Writes a random one of its possible contents into each recorded sector, then drops all records.
  // REQUIRES: no write is in flight.
  absl::Status PowerCut(std::mt19937_64& random);

 private:
  // The possible contents of each sector, by descriptor and sector number: first the contents from
  // before the first write, then those of the writes in order.
  std::map<std::pair<int, uint64_t>, std::vector<std::vector<std::byte>>> sectors_;
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_UNSYNCED_WRITES_H_
