// SPDX-License-Identifier: Apache-2.0
//
// A tile that an update leases, with the checksums of its pages. What came from NVMe is compared
// here, just before its bytes are used, and what goes back is hashed after its last byte was
// written: both while the bytes are in the processor's caches, and on all threads, where the engine
// would read memory once more. Which pages, and when, is the update pass's to say.

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

// A tile in pinned memory. Move-only. The engine must outlive it. It ends at destruction. Nothing
// is to be read or written before all of it was compared; a lease that ends before that changes
// nothing.
class HashedLease {
 public:
  // With an engine that compares all bytes itself there is nothing to hash.
  static absl::StatusOr<HashedLease> Acquire(Engine* engine, TileRef tile, Access access);

  HashedLease() = default;
  HashedLease(HashedLease&& other) noexcept = default;
  HashedLease& operator=(HashedLease&& other) noexcept;
  ~HashedLease() { Release(); }

  explicit operator bool() const { return static_cast<bool>(lease_); }
  std::byte* data() const { return lease_.data(); }
  uint64_t size_bytes() const { return lease_.size_bytes(); }
  // Whether the tile came from NVMe and was not compared there: then it is hashed on its way back,
  // too. What stays in memory is not hashed at all.
  bool is_hashed() const { return !expected_.empty(); }
  void Release();

  // Compares all pages of those leases that were not compared yet, on the pool's threads. A page
  // that does not match is read again; DataLoss if it does not match then.
  static absl::Status Compare(ThreadPool* pool, std::span<HashedLease> leases);
  // Bytes [begin, end) were written for the last time. Whoever says so of a page's last bytes
  // hashes it. Each byte is named once; any thread.
  void Written(uint64_t begin, uint64_t end);

 private:
  std::span<const std::byte> PageAt(uint64_t page) const;

  engine::UncheckedLeases* engine_ = nullptr;
  Lease lease_;
  bool writes_ = false;
  uint64_t page_bytes_ = 0;
  std::vector<uint64_t> expected_;  // by page; empty: the tile is not hashed
  bool is_compared_ = false;
  std::vector<uint64_t> computed_;  // by page, of a writer
  // By page, bytes that are not written yet.
  std::unique_ptr<std::atomic<uint64_t>[]> unwritten_;
};

}  // namespace spillway::optim

#endif  // SPILLWAY_OPTIM_HASHED_LEASE_H_
