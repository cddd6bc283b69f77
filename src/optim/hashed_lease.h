// SPDX-License-Identifier: Apache-2.0
//
// A lease that an update takes on a tile, with the checksums of the tile's pages. Pages that came
// from NVMe are compared here, just before their bytes are used. Pages that go back are hashed
// after their last byte was written. Both happen on all threads, while the bytes are in the
// processor's caches; the engine would have to read them from memory once more. The update pass
// decides which pages are hashed, and when.

#ifndef SPILLWAY_OPTIM_HASHED_LEASE_H_
#define SPILLWAY_OPTIM_HASHED_LEASE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spillway/engine.h"
#include "spillway/thread_pool.h"
#include "src/engine/unchecked_leases.h"

namespace spillway::optim {

// A lease of a tile in pinned memory. Move-only. The engine must outlive it. Destruction releases
// it. No byte may be read or written before the whole tile has been compared. A lease that is
// released before that leaves the tile unchanged.
class HashedLease {
 public:
  // Leases the tile. If the engine compares all bytes itself, the lease has nothing to hash.
  static absl::StatusOr<HashedLease> Acquire(Engine* engine, TileRef tile, Access access);

  HashedLease() = default;
  HashedLease(HashedLease&& other) noexcept = default;
  HashedLease& operator=(HashedLease&& other) noexcept;
  ~HashedLease() { Release(); }

  explicit operator bool() const { return static_cast<bool>(lease_); }
  std::byte* data() const { return lease_.data(); }
  uint64_t size_bytes() const { return lease_.size_bytes(); }
  // Whether the tile came from NVMe and the engine did not compare it. Such a tile is also hashed
  // on its way back. A tile that stays in memory is not hashed at all.
  bool is_hashed() const { return !expected_.empty(); }
  void Release();

  // Compares all pages of `leases` that were not compared yet, on the pool's threads. A page that
  // does not match is read again; DataLoss if it still does not match.
  static absl::Status Compare(ThreadPool* pool, std::span<HashedLease> leases);
  // Records that bytes [begin, end) were written for the last time. The call that names a page's
  // last unwritten bytes hashes the page. Each byte is named once. Any thread may call it.
  void Written(uint64_t begin, uint64_t end);

 private:
  std::span<const std::byte> PageAt(uint64_t page) const;

  engine::UncheckedLeases* engine_ = nullptr;
  Lease lease_;
  bool writes_ = false;
  uint64_t page_bytes_ = 0;
  std::vector<uint64_t> expected_;  // by page; empty: the tile is not hashed
  bool is_compared_ = false;
  std::vector<uint64_t> computed_;  // by page; only if the lease writes
  // The bytes of each page that are not written yet.
  std::unique_ptr<std::atomic<uint64_t>[]> unwritten_;
};

}  // namespace spillway::optim

#endif  // SPILLWAY_OPTIM_HASHED_LEASE_H_
