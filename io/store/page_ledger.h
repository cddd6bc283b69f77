// SPDX-License-Identifier: Apache-2.0
//
// Where the newest copy of every page rests, what changed since the last commit, and which extents
// only that commit still needs. Pure bookkeeping: the catalog makes it durable, the allocator
// reuses what it gives up.
//
// One idea: an extent that a commit names is given up only by a later commit. A commit whose
// outcome is unknown (its transaction failed at the very end) counts as one that may have happened.

#ifndef SPILLWAY_IO_STORE_PAGE_LEDGER_H_
#define SPILLWAY_IO_STORE_PAGE_LEDGER_H_

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "io/store/store.h"

namespace spillway::io {

// A page of a tensor.
struct PageKey {
  TensorIndex tensor = 0;
  uint64_t page = 0;
  friend auto operator<=>(const PageKey&, const PageKey&) = default;
};

// 24 bytes for each page that was ever written, 16 more while it differs from the last commit, and
// 16 while that commit needs another extent for it. Tensors are dense indexes from zero. Externally
// synchronised.
class PageLedger {
 public:
  // `catalog_id` is what the catalog calls it; none: transient, never part of a commit, and its
  // pages give up each extent at once.
  void AddTensor(std::optional<uint64_t> catalog_id) { tensors_.push_back({catalog_id, {}}); }
  uint64_t catalog_id(TensorIndex tensor) const { return *tensors_[tensor].catalog_id; }

  std::optional<PageRecord> Find(PageKey key) const;
  // Whether the last commit, or one of unknown outcome, names the extent of the page's newest copy.
  bool IsNamedByCommit(PageKey key) const;

  // Takes over a page of the last commit, while opening.
  void Load(PageKey key, const PageRecord& record);
  // The page has a new copy, or none any more. Gives back the extent that is free from now on, if
  // there is one.
  std::optional<Extent> Record(PageKey key, const PageRecord& record);
  std::optional<Extent> Forget(PageKey key);

  // Pages of committed tensors whose copy is not the last commit's, in order, each once.
  std::span<const PageKey> Changed();
  // What is recorded now was committed. Gives back the extents that only earlier commits named.
  std::vector<Extent> Committed();
  // Whether it was committed is unknown: both states keep their extents until a commit succeeds.
  void CommitInDoubt();

  // Sum, modulo 2^64, of PageDigest over every page that a commit would name now.
  uint64_t digest() const { return digest_; }

 private:
  // A PageRecord in 24 bytes: units are of kIoAlignment.
  struct Slot {
    uint64_t checksum = 0;
    uint32_t content_bytes = 0;
    uint32_t offset_units = 0;
    uint32_t device : 8 = 0;
    uint32_t segment : 24 = 0;
    uint32_t size_units : 24 = 0;  // 0: the page has no copy
    uint32_t named : 1 = 0;        // a commit names this extent
    uint32_t changed : 1 = 0;      // listed in changed_
  };
  static_assert(sizeof(Slot) == 24);
  struct Superseded {
    uint32_t device : 8;
    uint32_t segment : 24;
    uint32_t offset_units;
    uint32_t size_bytes;
  };
  struct Tensor {
    std::optional<uint64_t> catalog_id;
    std::vector<Slot> pages;  // as long as the highest page that was ever written
  };

  static Slot Pack(const PageRecord& record);
  static PageRecord Unpack(const Slot& slot);
  const Slot* FindSlot(PageKey key) const;
  Slot& MakeSlot(PageKey key);
  std::optional<Extent> Replace(PageKey key, const Slot& replacement);

  std::vector<Tensor> tensors_;
  std::vector<PageKey> changed_;
  std::vector<Superseded> superseded_;
  uint64_t digest_ = 0;
  bool changed_is_sorted_ = true;
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_STORE_PAGE_LEDGER_H_
