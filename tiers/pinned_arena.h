// SPDX-License-Identifier: Apache-2.0
//
// The pinned tier's memory: one reserved address range, locked and registered slab by slab on first use.
// Which frame of it belongs to whom is the engine's business.

#ifndef SPILLWAY_TIERS_PINNED_ARENA_H_
#define SPILLWAY_TIERS_PINNED_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace spillway::tiers {

struct PinnedArenaOptions {
  uint64_t size_bytes = 0;                      // the budget; the arena never exceeds it
  uint64_t slab_bytes = uint64_t{256} << 20;    // at most 1 GiB; the last slab is shorter
  // Called for each slab after it was locked: registers it with the device and the ring.
  std::function<absl::Status(std::span<std::byte> slab)> register_slab;
  // Called once if memory cannot be locked (RLIMIT_MEMLOCK) and stays pageable, or has no huge pages.
  std::function<void(std::string_view)> announce;
};

// Thread-compatible: the mover's.
class PinnedArena {
 public:
  // Reserves addresses (2 MiB aligned, huge pages advised) and touches nothing. ResourceExhausted if the
  // address space is refused.
  static absl::StatusOr<std::unique_ptr<PinnedArena>> Create(PinnedArenaOptions options);
  ~PinnedArena();

  std::byte* data() const { return data_; }
  uint64_t size_bytes() const { return options_.size_bytes; }

  // Makes [offset, offset + size) usable: locks and registers the slabs it touches that are not yet.
  absl::Status EnsureUsable(uint64_t offset, uint64_t size);

  uint64_t locked_bytes() const;    // of slabs used so far
  uint64_t pageable_bytes() const;  // of slabs that could not be locked

 private:
  PinnedArena() = default;
  PinnedArenaOptions options_;
  std::byte* data_ = nullptr;
  std::byte* mapping_ = nullptr;    // with the slack that alignment took
  uint64_t mapping_bytes_ = 0;
  uint64_t locked_bytes_ = 0;
  uint64_t pageable_bytes_ = 0;
  bool announced_ = false;
  std::vector<bool> slab_ready_;
};

}  // namespace spillway::tiers

#endif  // SPILLWAY_TIERS_PINNED_ARENA_H_
