// SPDX-License-Identifier: Apache-2.0
//
// Pinned memory is committed one slab at a time:
//   1. Create maps addresses and commits nothing.
//   2. The first use of a slab locks it: mlock faults in all of it, in huge pages if the kernel has
//      them.
//   3. The slab is then registered, once.
// A slab that cannot be locked stays pageable. The engine uses it at a lower speed, and the arena
// announces this once.

#include "tiers/pinned_arena.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "src/base/bytes.h"
#include "src/base/check.h"
#include "src/base/status_macros.h"
#include "tiers/address_range.h"

namespace spillway::tiers {
namespace {

constexpr uint64_t kMaxSlabBytes = uint64_t{1} << 30;  // the largest buffer that io_uring registers

struct Residency {
  uint64_t resident_bytes = 0;
  uint64_t huge_page_bytes = 0;
};

// Returns the kernel's figures, from /proc/self/smaps, for the mappings that overlap `memory`.
Residency ReadResidency(std::span<const std::byte> memory) {
  const auto begin = reinterpret_cast<uintptr_t>(memory.data());
  const uintptr_t end = begin + memory.size();
  Residency residency;
  std::ifstream smaps("/proc/self/smaps");
  bool overlaps = false;
  for (std::string line; std::getline(smaps, line);) {
    unsigned long first = 0, last = 0, kib = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &first, &last) == 2) {
      overlaps = first < end && begin < last;
    } else if (overlaps && std::sscanf(line.c_str(), "Rss: %lu kB", &kib) == 1) {
      residency.resident_bytes += uint64_t{kib} << 10;
    } else if (overlaps && std::sscanf(line.c_str(), "AnonHugePages: %lu kB", &kib) == 1) {
      residency.huge_page_bytes += uint64_t{kib} << 10;
    }
  }
  return residency;
}

}  // namespace

absl::StatusOr<std::unique_ptr<PinnedArena>> PinnedArena::Create(PinnedArenaOptions options) {
  if (options.size_bytes < kSmallPageBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the pinned arena needs at least 4096 bytes, not ", options.size_bytes));
  }
  if (options.slab_bytes == 0 || options.slab_bytes > kMaxSlabBytes ||
      options.slab_bytes % kSmallPageBytes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("slabs of the pinned arena are multiples of 4096 bytes up to 1 GiB, not ",
                     options.slab_bytes));
  }
  options.size_bytes = base::RoundDown(options.size_bytes, kSmallPageBytes);
  SPILLWAY_ASSIGN_OR_RETURN(std::byte * data,
                            MapAddressRange(options.size_bytes, "the pinned arena"));
  auto arena = std::unique_ptr<PinnedArena>(new PinnedArena(std::move(options)));
  arena->data_ = data;
  return arena;
}

PinnedArena::PinnedArena(PinnedArenaOptions options)
    : options_(std::move(options)),
      slab_ready_((options_.size_bytes + options_.slab_bytes - 1) / options_.slab_bytes, false) {}

PinnedArena::~PinnedArena() {
  for (uint64_t slab = 0; slab < slab_ready_.size(); ++slab) {
    if (slab_ready_[slab] && options_.unregister_slab) options_.unregister_slab(Slab(slab));
  }
  UnmapAddressRange(data_, options_.size_bytes);
}

std::span<std::byte> PinnedArena::Slab(uint64_t slab) const {
  const uint64_t offset = slab * options_.slab_bytes;
  return {data_ + offset, std::min(options_.slab_bytes, options_.size_bytes - offset)};
}

absl::Status PinnedArena::EnsureUsable(uint64_t offset, uint64_t size) {
  if (offset > options_.size_bytes || size > options_.size_bytes - offset) {
    return absl::InvalidArgumentError(absl::StrCat("bytes ", offset, " to ", offset, "+", size,
                                                   " are outside the pinned arena of ",
                                                   options_.size_bytes));
  }
  if (size == 0) return absl::OkStatus();
  const uint64_t last = (offset + size - 1) / options_.slab_bytes;
  for (uint64_t slab = offset / options_.slab_bytes; slab <= last; ++slab) {
    if (!slab_ready_[slab]) SPILLWAY_RETURN_IF_ERROR(PrepareSlab(slab));
  }
  return absl::OkStatus();
}

absl::Status PinnedArena::PrepareSlab(uint64_t slab) {
  const std::span<std::byte> memory = Slab(slab);
  const bool locked = Lock(memory);
  if (locked) CheckHugePages(memory);
  if (options_.register_slab) {
    const absl::Status registered = options_.register_slab(memory);
    if (!registered.ok()) {
      if (locked) (void)munlock(memory.data(), memory.size());
      return registered;
    }
  }
  (locked ? locked_bytes_ : pageable_bytes_) += memory.size();
  slab_ready_[slab] = true;
  return absl::OkStatus();
}

bool PinnedArena::Lock(std::span<std::byte> slab) {
  if (mlock(slab.data(), slab.size()) == 0) return true;
  const int error = errno;
  (void)munlock(slab.data(), slab.size());  // an mlock that fails midway leaves pages locked
  if (!announced_pageable_) {
    announced_pageable_ = true;
    Announce(absl::StrCat(
        "cannot lock ", base::FormatBytes(slab.size()), " of memory (", std::strerror(error),
        "): pinned memory stays pageable; raise the limit (ulimit -l) to lock it"));
  }
  return false;
}

void PinnedArena::CheckHugePages(std::span<std::byte> slab) {
  if (checked_huge_pages_ || slab.size() < 2 * kArenaAlignmentBytes) return;
  checked_huge_pages_ = true;
  const Residency residency = ReadResidency(slab);
  if (residency.resident_bytes == 0 || residency.huge_page_bytes > 0) return;
  Announce(
      "no huge pages for pinned memory: transfers cost more CPU time; set "
      "/sys/kernel/mm/transparent_hugepage/enabled to madvise");
}

void PinnedArena::Announce(std::string_view message) const {
  if (options_.announce) options_.announce(message);
}

}  // namespace spillway::tiers
