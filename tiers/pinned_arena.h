// SPDX-License-Identifier: Apache-2.0
//
// The pinned tier's memory: one reserved address range, locked and registered slab by slab on first
// use. Which frame of it belongs to whom is the engine's business.

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
  uint64_t size_bytes = 0;  // the budget; rounded down to 4 KiB, never exceeded
  // A multiple of 4 KiB, at most 1 GiB; the last slab is shorter. Locking a slab commits all of it,
  // so this is the step in which the arena takes memory from the machine.
  uint64_t slab_bytes = uint64_t{256} << 20;
  // Called for each slab after it was locked: registers it with the device and the ring.
  std::function<absl::Status(std::span<std::byte> slab)> register_slab;
  // Called at destruction for each slab that register_slab took, before its memory goes.
  std::function<void(std::span<std::byte> slab)> unregister_slab;
  // Called once if memory cannot be locked (RLIMIT_MEMLOCK) and stays pageable, and once if the
  // first slab with room for a huge page got none.
  std::function<void(std::string_view)> announce;
};

// Thread-compatible: the mover's.
class PinnedArena {
 public:
  // Reserves addresses (2 MiB aligned, huge pages advised) and touches nothing. InvalidArgument for
  // a size below 4 KiB or slabs that are none; ResourceExhausted if the address space is refused.
  static absl::StatusOr<std::unique_ptr<PinnedArena>> Create(PinnedArenaOptions options);
  ~PinnedArena();
  PinnedArena(const PinnedArena&) = delete;
  PinnedArena& operator=(const PinnedArena&) = delete;

  std::byte* data() const { return data_; }
  uint64_t size_bytes() const { return options_.size_bytes; }

  // Makes [offset, offset + size) usable: locks and registers the slabs it touches that are not
  // yet. Memory that cannot be locked is used as it is. A failure of register_slab is returned as
  // it came, that slab is unlocked again and the next call retries it. InvalidArgument outside the
  // arena.
  absl::Status EnsureUsable(uint64_t offset, uint64_t size);

  uint64_t locked_bytes() const { return locked_bytes_; }      // of slabs used so far
  uint64_t pageable_bytes() const { return pageable_bytes_; }  // of slabs that could not be locked

 private:
  explicit PinnedArena(PinnedArenaOptions options);
  std::span<std::byte> Slab(uint64_t slab) const;
  absl::Status PrepareSlab(uint64_t slab);
  bool Lock(std::span<std::byte> slab);
  void CheckHugePages(std::span<std::byte> slab);
  void Announce(std::string_view message) const;

  PinnedArenaOptions options_;
  std::byte* data_ = nullptr;
  uint64_t locked_bytes_ = 0;
  uint64_t pageable_bytes_ = 0;
  bool announced_pageable_ = false;
  bool checked_huge_pages_ = false;
  std::vector<bool> slab_ready_;
};

}  // namespace spillway::tiers

#endif  // SPILLWAY_TIERS_PINNED_ARENA_H_
