// SPDX-License-Identifier: Apache-2.0
//
// A tile's way between its pinned frame and the store: cut into pages, each with an extent and a
// checksum. It knows nothing of residency; the mover tells it what to move and takes the result of
// the whole tile.

#ifndef SPILLWAY_ENGINE_TILE_IO_H_
#define SPILLWAY_ENGINE_TILE_IO_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "io/io_engine.h"
#include "io/store/store.h"
#include "src/engine/arena_map.h"

namespace spillway::engine {

// Where a tile rests in the store: pages [first_page, first_page + its number) of a tensor.
struct TilePlace {
  io::TensorIndex tensor = 0;
  uint64_t first_page = 0;
  uint64_t size_bytes = 0;
};

struct TileIoResult {
  TileIndex tile;
  absl::Status status;
};

// The mover thread's. The store and the I/O engine must outlive it.
class TileIo {
 public:
  TileIo(io::Store* store, io::IoEngine* io);

  // The frame has room for the tile rounded up to kFrameAlignment. Results come from Reap; a
  // transfer that could not start has its result there as well.
  void Read(TileIndex tile, const TilePlace& place, std::byte* frame);
  // What a page's last sector has beyond the tile is written as zeros.
  void Write(TileIndex tile, const TilePlace& place, std::byte* frame);
  void Forget(const TilePlace& place);

  // Waits as IoEngine::Reap does, unless there are results already; appends the tiles that ended.
  void Reap(absl::Duration timeout, std::vector<TileIoResult>* results);

 private:
  struct Operation {
    TileIndex tile = 0;
    io::IoOp op = io::IoOp::kRead;
    TilePlace place;
    std::byte* frame = nullptr;
    std::vector<io::PageRecord> pages;
    std::vector<io::FileId> files;  // of each page's extent
    std::vector<bool> retried;      // reads: once more after a checksum that did not match
    size_t remaining = 0;
    absl::Status status;
  };

  uint64_t NumPages(const TilePlace& place) const;
  void Submit(uint64_t id, Operation operation);
  io::IoRequest Request(uint64_t id, const Operation& operation, size_t page) const;
  void OnCompletion(const io::IoCompletion& completion);
  absl::Status Verify(const Operation& operation, size_t page) const;
  void Finish(uint64_t id);
  void FailAtOnce(TileIndex tile, absl::Status status);

  io::Store* store_;
  io::IoEngine* io_;
  uint64_t page_bytes_;
  uint64_t next_id_ = 0;
  std::unordered_map<uint64_t, Operation> operations_;
  std::vector<TileIoResult> results_;
  std::vector<io::IoCompletion> completions_;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_TILE_IO_H_
