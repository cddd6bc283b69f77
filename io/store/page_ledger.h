// SPDX-License-Identifier: Apache-2.0
//
// Where the newest copies of pages rest, as far as they were looked at, and what changed since the
// last commit. Pure bookkeeping: the catalog has all pages of the last commit, and decides which
// extents a commit frees; the allocator reuses what is given up.
//
// One idea: it is a cache of the catalog, in ranges of 1,024 pages, with the changes laid over it.
// A page may be recorded before its range is loaded, because what it replaces is the catalog's to
// know. A commit whose outcome is unknown (its transaction failed at the very end) counts as one
// that may have happened.

#ifndef SPILLWAY_IO_STORE_PAGE_LEDGER_H_
#define SPILLWAY_IO_STORE_PAGE_LEDGER_H_

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "io/store/store.h"

namespace spillway::io {

// A page of a tensor.
struct PageKey {
  TensorIndex tensor = 0;
  uint64_t page = 0;
  friend auto operator<=>(const PageKey&, const PageKey&) = default;
};

// 32 bytes for each page of a range that was looked at or written, 16 more while it differs from
// the last commit. Tensors are dense indexes from zero. Externally synchronised.
class PageLedger {
 public:
  static constexpr uint64_t kRangePages = 1024;

  // A transient tensor is never part of a commit. One that is not `committed` has no rows to load.
  void AddTensor(uint64_t num_pages, bool transient, bool committed) {
    tensors_.push_back({num_pages, transient, committed, {}});
  }
  bool is_transient(TensorIndex tensor) const { return tensors_[tensor].transient; }
  bool is_committed(TensorIndex tensor) const { return tensors_[tensor].committed; }
  void SetCommitted(TensorIndex tensor, bool committed) { tensors_[tensor].committed = committed; }

  // Whether the catalog must be asked before Find knows: load the page's range, then.
  bool NeedsLoad(PageKey key) const;
  // One page of a range of the last commit; and all of the range was given.
  void Load(PageKey key, const PageRecord& record);
  void SetLoaded(PageKey any_of_range);

  // The newest copy; none: there is none (or NeedsLoad).
  std::optional<PageRecord> Find(PageKey key) const;

  // The page has a new copy, or none any more. Gives back the copy whose extent it needs no longer,
  // if it had one that surely no commit names.
  std::optional<PageRecord> Record(PageKey key, const PageRecord& record);
  std::optional<PageRecord> Forget(PageKey key);

  // Pages of lasting tensors that were recorded or forgotten since the last commit, in order, each
  // once.
  std::span<const PageKey> Changed();
  // What is recorded now was committed. Gives back the copies that only a commit in doubt named.
  std::vector<PageRecord> Committed();
  // Whether it was committed is unknown: both states keep their extents until a commit succeeds.
  void CommitInDoubt();
  // Another state was committed: forgets everything of lasting tensors, the changes too. Gives back
  // the copies that no commit names any more.
  std::vector<PageRecord> Reset();

 private:
  // A PageRecord in 32 bytes: units are of kIoAlignment.
  struct Slot {
    uint64_t checksum = 0;
    uint32_t content_bytes = 0;
    uint32_t skip_bytes = 0;
    uint32_t offset_units = 0;
    uint32_t device : 8 = 0;
    uint32_t segment : 24 = 0;
    uint32_t size_units : 24 = 0;  // 0: the page has no copy
    uint32_t packed : 1 = 0;
    uint32_t changed : 1 = 0;   // listed in changed_
    uint32_t in_doubt : 1 = 0;  // a commit in doubt may name this extent
  };
  static_assert(sizeof(Slot) == 32);
  struct Range {
    bool loaded = false;
    std::vector<Slot> slots;
  };
  struct Tensor {
    uint64_t num_pages = 0;
    bool transient = false;
    bool committed = false;
    absl::flat_hash_map<uint64_t, Range> ranges;  // by page / kRangePages
  };

  static Slot Pack(const PageRecord& record);
  static PageRecord Unpack(const Slot& slot);
  const Slot* FindSlot(PageKey key) const;
  Range& MakeRange(PageKey key);
  Slot& MakeSlot(PageKey key) { return MakeRange(key).slots[key.page % kRangePages]; }
  std::optional<PageRecord> Replace(PageKey key, const Slot& replacement);

  std::vector<Tensor> tensors_;
  std::vector<PageKey> changed_;
  std::vector<PageRecord> doubtful_;  // replaced copies that a commit in doubt may name
  bool changed_is_sorted_ = true;
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_STORE_PAGE_LEDGER_H_
