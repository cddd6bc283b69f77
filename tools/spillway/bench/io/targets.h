// SPDX-License-Identifier: Apache-2.0
//
// The targets of a benchmark's passes: a bare file through an I/O engine, or a tensor in the page
// store.

#ifndef SPILLWAY_TOOLS_SPILLWAY_BENCH_IO_TARGETS_H_
#define SPILLWAY_TOOLS_SPILLWAY_BENCH_IO_TARGETS_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "io/io_engine.h"
#include "io/store/page_io.h"
#include "io/store/store.h"
#include "tools/spillway/bench/io/pass.h"

namespace spillway::bench_io {

// Moves blocks of files that are striped in units of 4 MiB. The engine must outlive it.
class FileTarget final : public Target {
 public:
  FileTarget(io::IoEngine* engine, std::vector<io::FileId> files, uint32_t block_bytes)
      : engine_(engine), files_(std::move(files)), block_bytes_(block_bytes) {}
  void Start(std::span<const Move> moves) override;
  void Reap(std::vector<Moved>* moved) override;
  double checksum_seconds() const override { return 0; }

 private:
  io::IoEngine* const engine_;
  const std::vector<io::FileId> files_;
  const uint32_t block_bytes_;
  std::vector<io::IoRequest> requests_;
  std::vector<io::IoCompletion> completions_;
};

// Moves blocks of a tensor. A block is a run of the tensor's pages, with catalog, extents and
// checksums (unless the options turn checksums off). The store and the engine must outlive it.
class StoreTarget final : public Target {
 public:
  StoreTarget(io::Store* store, io::IoEngine* engine, io::TensorIndex tensor, uint32_t block_bytes,
              const io::PageIoOptions& options = {})
      : pages_(store, engine, options),
        tensor_(tensor),
        block_bytes_(block_bytes),
        pages_per_block_(block_bytes / store->page_bytes()) {}
  void Start(std::span<const Move> moves) override;
  void Reap(std::vector<Moved>* moved) override;
  double checksum_seconds() const override { return pages_.hashing().seconds; }

 private:
  io::PageIo pages_;
  const io::TensorIndex tensor_;
  const uint32_t block_bytes_;
  const uint64_t pages_per_block_;
  std::vector<io::PageIo::Result> results_;
};

}  // namespace spillway::bench_io

#endif  // SPILLWAY_TOOLS_SPILLWAY_BENCH_IO_TARGETS_H_
