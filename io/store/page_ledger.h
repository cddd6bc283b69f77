// SPDX-License-Identifier: Apache-2.0
//
// Records where the newest copies of pages are, for the pages that were looked up or written, and
// which pages changed since the last commit. Pure bookkeeping: the catalog has all pages of the
// last commit, and decides which extents a commit frees; the allocator reuses the extents that are
// given up.
//
// One idea: the ledger is a cache of the catalog, in ranges of 1,024 pages, with the changes laid
// over it. A page may be recorded before its range is loaded, because the catalog tracks the copy
// that it replaces. A commit whose outcome is unknown (its transaction failed at the very end) is
// treated as one that may have happened.

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

// Uses 32 bytes for each page of a range that was looked up or written, and 16 more for a page
// while it differs from the last commit. Tensors are dense indexes from zero. Externally
// synchronised.
class PageLedger {
 public:
  static constexpr uint64_t kRangePages = 1024;

  // Adds the next tensor. A transient tensor is never part of a commit. A tensor that is not
  // `committed` has no rows in the catalog to load.
  void AddTensor(uint64_t num_pages, bool transient, bool committed) {
    tensors_.push_back({num_pages, transient, committed, {}});
  }
  bool is_transient(TensorIndex tensor) const { return tensors_[tensor].transient; }
  bool is_committed(TensorIndex tensor) const { return tensors_[tensor].committed; }
  void SetCommitted(TensorIndex tensor, bool committed) { tensors_[tensor].committed = committed; }

  // Whether the page's range must be loaded from the catalog before Find can answer.
  bool NeedsLoad(PageKey key) const;
  // Load adds one page of the last commit, unless the page has changed since. SetLoaded marks the
  // range as complete.
  void Load(PageKey key, const PageRecord& record);
  void SetLoaded(PageKey any_of_range);

  // Returns the newest copy; none if the page has no copy (or NeedsLoad).
  std::optional<PageRecord> Find(PageKey key) const;

  // Record gives the page a new copy; Forget leaves it without one. Both return the previous copy
  // if its extent is no longer needed by the page and certainly named by no commit.
  std::optional<PageRecord> Record(PageKey key, const PageRecord& record);
  std::optional<PageRecord> Forget(PageKey key);

  // Returns the pages of non-transient tensors that were recorded or forgotten since the last
  // commit, in order, each once.
  std::span<const PageKey> Changed();
  // Records that the current state was committed. Returns the replaced copies that a commit in
  // doubt may have named: no commit names them now.
  std::vector<PageRecord> Committed();
  // Records that it is unknown whether the current state was committed. The extents of both states
  // stay in use until Committed or Reset.
  void CommitInDoubt();
  // Another state was committed: forgets everything about non-transient tensors, including the
  // changes. Returns the copies that no commit names any more.
  std::vector<PageRecord> Reset();

 private:
  // A PageRecord in 32 bytes. A unit is kIoAlignment bytes.
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
