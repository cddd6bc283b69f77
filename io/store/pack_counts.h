// SPDX-License-Identifier: Apache-2.0
//
// Counts, for each shared extent, the pages that need it and that no commit holds yet. The catalog
// counts the references of commits and snapshots.

#ifndef SPILLWAY_IO_STORE_PACK_COUNTS_H_
#define SPILLWAY_IO_STORE_PACK_COUNTS_H_

#include <cstdint>
#include <tuple>

#include "absl/container/flat_hash_map.h"
#include "io/store/store.h"
#include "src/base/check.h"

namespace spillway::io {

// An extent is in use while it has a count here or the catalog names it. Not thread-safe.
class PackCounts {
 public:
  // Counts a page that was recorded in the extent.
  void Add(const Extent& extent) { ++packs_[KeyOf(extent)].count; }
  // Removes the count of a page that was replaced or forgotten. Returns whether the extent is free:
  // no count is left, and the catalog does not name it.
  bool Remove(const Extent& extent) { return Drop(extent, false); }
  // Removes the count of a page that was committed: from now on the catalog counts it.
  void Commit(const Extent& extent) { (void)Drop(extent, true); }
  // Records that no commit and no snapshot names the extent any more. Returns whether it is free.
  bool Unname(const Extent& extent) {
    const auto pack = packs_.find(KeyOf(extent));
    if (pack == packs_.end()) return true;
    pack->second.is_named = false;
    return false;
  }

 private:
  using Key = std::tuple<uint16_t, uint32_t, uint64_t>;
  struct Pack {
    uint32_t count = 0;
    bool is_named = false;
  };

  static Key KeyOf(const Extent& extent) { return {extent.device, extent.segment, extent.offset}; }
  bool Drop(const Extent& extent, bool is_named) {
    const auto pack = packs_.find(KeyOf(extent));
    SPILLWAY_CHECK(pack != packs_.end() && pack->second.count > 0);
    pack->second.is_named = pack->second.is_named || is_named;
    if (--pack->second.count > 0) return false;
    const bool is_free = !pack->second.is_named;
    packs_.erase(pack);
    return is_free;
  }

  absl::flat_hash_map<Key, Pack> packs_;
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_STORE_PACK_COUNTS_H_
