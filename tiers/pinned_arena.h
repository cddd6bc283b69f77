// SPDX-License-Identifier: Apache-2.0
//
// The pinned tier's memory: one reserved address range that is locked and registered slab by slab
// on first use. The engine divides it into frames.

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
  // A multiple of 4 KiB, at most 1 GiB; the last slab may be shorter. Locking a slab commits all of
  // it, so the arena takes memory from the machine in steps of this size.
  uint64_t slab_bytes = uint64_t{256} << 20;
  // Called for each slab once it is locked, or could not be locked. Registers the slab with the
  // device and the ring.
  std::function<absl::Status(std::span<std::byte> slab)> register_slab;
  // Called at destruction for each slab that register_slab accepted, before its memory is unmapped.
  std::function<void(std::span<std::byte> slab)> unregister_slab;
  // Called once if memory cannot be locked (RLIMIT_MEMLOCK) and stays pageable, and once if the
  // first locked slab that is large enough for huge pages got none.
  std::function<void(std::string_view)> announce;
};

// Thread-compatible. The mover uses it.
class PinnedArena {
 public:
  // Reserves addresses (2 MiB aligned, huge pages advised) and commits no memory. InvalidArgument
  // for a size below 4 KiB or an invalid slab size; ResourceExhausted if the kernel refuses the
  // addresses.
  static absl::StatusOr<std::unique_ptr<PinnedArena>> Create(PinnedArenaOptions options);
  ~PinnedArena();
  PinnedArena(const PinnedArena&) = delete;
  PinnedArena& operator=(const PinnedArena&) = delete;

  std::byte* data() const { return data_; }
  uint64_t size_bytes() const { return options_.size_bytes; }

  // Makes [offset, offset + size) usable: locks and registers the slabs in this range that are not
  // ready yet. Memory that cannot be locked stays pageable. If register_slab fails, returns its
  // status unchanged and unlocks the slab; the next call retries. InvalidArgument if the range is
  // outside the arena.
  absl::Status EnsureUsable(uint64_t offset, uint64_t size);

  uint64_t locked_bytes() const { return locked_bytes_; }      // in slabs that were locked
  uint64_t pageable_bytes() const { return pageable_bytes_; }  // in slabs that could not be locked

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
