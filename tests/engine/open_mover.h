// SPDX-License-Identifier: Apache-2.0
//
// Opens a mover over a store, from parts that a test chooses and may make to fail.

#ifndef SPILLWAY_TESTS_ENGINE_OPEN_MOVER_H_
#define SPILLWAY_TESTS_ENGINE_OPEN_MOVER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "io/store/store.h"
#include "src/base/status_macros.h"
#include "src/engine/mover.h"

namespace spillway::engine {

inline std::string DescribeTile(TileIndex tile) { return absl::StrCat("tile ", tile); }

// Opens a mover with pages of 16 KiB. `describe` names a tile in an error, and is called under the
// mover's lock.
inline absl::StatusOr<std::unique_ptr<Mover>> OpenMover(
    const std::vector<std::string>& folders, std::unique_ptr<tiers::DeviceRuntime> runtime,
    std::unique_ptr<io::IoEngine> io, uint64_t device_bytes, uint64_t pinned_bytes,
    std::function<std::string(TileIndex)> describe = DescribeTile, PumpLimits pump = {}) {
  MoverParts parts;
  parts.runtime = std::move(runtime);
  parts.io = std::move(io);
  SPILLWAY_ASSIGN_OR_RETURN(
      parts.store, io::Store::Open({.folders = folders, .page_bytes = 16 * kKiB}, parts.io.get()));
  SPILLWAY_ASSIGN_OR_RETURN(parts.pinned, tiers::PinnedArena::Create({.size_bytes = pinned_bytes}));
  parts.device_bytes = device_bytes;
  parts.slab_bytes = 256 * kMiB;
  PagerOptions pager;
  pager.device_bytes = device_bytes;
  pager.pinned_bytes = pinned_bytes;
  pager.has_store = true;
  pager.describe = std::move(describe);
  pager.pump = pump;
  return Mover::Create(std::move(parts), pager, &plan::WaysToRetain);
}

// Runs a commit of the mover that does not commit the store.
inline absl::Status FlushAll(Mover& mover) {
  return mover.Commit([](io::Store*) { return absl::OkStatus(); });
}

}  // namespace spillway::engine

#endif  // SPILLWAY_TESTS_ENGINE_OPEN_MOVER_H_
