// SPDX-License-Identifier: Apache-2.0
//
// Free bytes as the catalog stores them: for each 64 MiB chunk of a segment file, the runs of units
// that no commit and no snapshot names. Extents that a process has allocated since the last commit
// are still free here, so they are free again if the process dies.
//
// One idea: a change reads the rows of the chunks that it touches and writes them back, all in the
// commit's transaction. So free space takes no memory between changes, needs no computation when a
// store opens, and always matches the rows of pages.

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

// A chunk of a device. Chunks are ordered as the files are filled.
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

// Parses or formats runs as "first+count first+count ...", ascending, no two touching. ParseRuns
// returns none if the text is not such a list.
std::optional<std::vector<UnitRun>> ParseRuns(std::string_view text);
std::string FormatRuns(const std::vector<UnitRun>& runs);

// Collects the bytes that a transaction adds, takes and gives back, and then applies them to
// free_space. Bytes that a transaction gives back are not among those that it takes, unless it also
// adds them.
class FreeSpaceChange {
 public:
  explicit FreeSpaceChange(SqliteDatabase* database) : database_(database) {}
  // Adds new, free bytes of a file. They are applied before the bytes that are taken.
  void Add(uint16_t device, uint32_t segment, uint64_t offset, uint64_t size_bytes) {
    Append(added_, device, segment, offset, size_bytes);
  }
  // Takes bytes: a page lies there now, or the file was cut and they no longer exist.
  void Take(uint16_t device, uint32_t segment, uint64_t offset, uint64_t size_bytes) {
    Append(taken_, device, segment, offset, size_bytes);
  }
  void Give(const Extent& extent) {
    Append(given_, extent.device, extent.segment, extent.offset, extent.size_bytes);
  }
  // Applies the change. REQUIRES: the transaction is open. DataLoss, naming chunk and file numbers,
  // if bytes are taken that are not free, or added or given back that are.
  absl::Status Apply();

 private:
  // A run of units in one chunk.
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
