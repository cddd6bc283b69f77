// SPDX-License-Identifier: Apache-2.0
//
// Free bytes as the catalog keeps them: for each 64 MiB chunk of a segment file, the runs of units
// that no commit and no snapshot names. What a process has handed out since is not taken off here:
// if it dies, those bytes are free again.
//
// One idea: a change reads the rows of the chunks that it touches and writes them back, all in the
// commit's transaction. So free space costs nothing to keep in memory, nothing to compute when a
// store opens, and is exactly as old as the pages.

#ifndef SPILLWAY_IO_STORE_FREE_SPACE_H_
#define SPILLWAY_IO_STORE_FREE_SPACE_H_

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "io/store/sqlite.h"
#include "io/store/store.h"

namespace spillway::io {

inline constexpr uint64_t kChunkBytes = uint64_t{64} << 20;
inline constexpr uint32_t kChunkUnits = static_cast<uint32_t>(kChunkBytes / kIoAlignment);

// A chunk of a device. Ordered as the files are filled.
struct ChunkId {
  uint32_t segment = 0;
  uint32_t chunk = 0;
  friend auto operator<=>(const ChunkId&, const ChunkId&) = default;
};

// Units [first, first + count) of a chunk.
struct UnitRun {
  uint32_t first = 0;
  uint32_t count = 0;
  friend bool operator==(const UnitRun&, const UnitRun&) = default;
};

struct FreeChunk {
  ChunkId id;
  std::vector<UnitRun> runs;
};

// "first+count first+count ...", ascending, no two touching. None: it is not such a text.
std::optional<std::vector<UnitRun>> ParseRuns(std::string_view text);
std::string FormatRuns(const std::vector<UnitRun>& runs);

// Bytes that a transaction takes and gives back, gathered and then applied to free_space. What is
// given back in a transaction is not taken in it, except by way of Add.
class FreeSpaceChange {
 public:
  explicit FreeSpaceChange(SqliteDatabase* database) : database_(database) {}
  // New bytes of a file, free; they come before what is taken.
  void Add(uint16_t device, uint32_t segment, uint64_t offset, uint64_t size_bytes) {
    Append(added_, device, segment, offset, size_bytes);
  }
  // A page comes to rest there, or (by cutting a file) the bytes are no more.
  void Take(uint16_t device, uint32_t segment, uint64_t offset, uint64_t size_bytes) {
    Append(taken_, device, segment, offset, size_bytes);
  }
  void Give(const Extent& extent) {
    Append(given_, extent.device, extent.segment, extent.offset, extent.size_bytes);
  }
  // Inside the transaction. DataLoss, naming chunk and file numbers, if bytes are taken that are
  // not free, or given back that are.
  absl::Status Apply();

 private:
  // Units of one chunk.
  struct Piece {
    uint16_t device;
    ChunkId id;
    UnitRun run;
  };
  using Pieces = std::vector<Piece>;

  static void Append(Pieces& pieces, uint16_t device, uint32_t segment, uint64_t offset,
                     uint64_t size_bytes);
  absl::Status Conflict(const Piece& piece, bool free) const;

  SqliteDatabase* database_;
  Pieces added_;
  Pieces taken_;
  Pieces given_;
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_STORE_FREE_SPACE_H_
