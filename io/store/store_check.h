// SPDX-License-Identifier: Apache-2.0
//
// Checks whether a store is intact: every invariant of io/FORMAT.md, the digest of every commit
// that it retains, and the checksum of every page. Bytes that nothing names, which a crash may
// leave without harm, are reported apart from damage, and can be reclaimed.
//
// One idea: one walk over all extents in the order of their position finds extents that overlap,
// bytes that are free and named at once, bytes that are neither, and digests that do not add up. It
// reads each byte once, in order.

#ifndef SPILLWAY_IO_STORE_STORE_CHECK_H_
#define SPILLWAY_IO_STORE_STORE_CHECK_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "io/io_engine.h"
#include "io/store/store_view.h"

namespace spillway::io {

// One piece of damage. Fields that do not apply are empty.
struct StoreFinding {
  std::string message;                    // complete: names all that follows
  std::string tensor;                     // name of the tensor
  std::optional<uint64_t> page;           // in the tensor
  std::string path;                       // of the file
  std::optional<uint64_t> offset;         // in the file
  std::vector<std::string> commits = {};  // that need it: "the last commit", "snapshot 'a'"
};

// Bytes that nothing names. They are of no use, and do no harm.
struct Orphan {
  enum class Kind : uint8_t {
    kUnnamed,   // in a file that the catalog lists: neither in an extent nor free
    kTail,      // end of a segment file beyond its size in the catalog, or all of an unlisted one
    kLeftover,  // a file of a store that was never finished
  } kind = Kind::kUnnamed;
  uint16_t device = 0;
  uint32_t segment = 0;  // for kUnnamed and kTail
  std::string path;
  uint64_t offset = 0;
  uint64_t size_bytes = 0;
};

struct StoreCheckReport {
  uint64_t tensors = 0;  // of the last commit
  uint64_t pages = 0;    // rows of the last commit and of snapshots
  uint64_t extents = 0;
  uint64_t used_bytes = 0;  // of extents
  uint64_t free_bytes = 0;
  uint64_t read_bytes = 0;
  uint64_t snapshots = 0;
  uint64_t damage = 0;                 // number of all findings
  std::vector<StoreFinding> findings;  // the first max_findings of them
  uint64_t orphan_bytes = 0;
  std::vector<Orphan> orphans;
};

struct StoreCheckOptions {
  bool read_pages = true;  // false: only the catalog and file sizes are checked
  size_t max_findings = 100;
  // Called from time to time with the bytes of the extents walked so far, and of all extents. May
  // be empty.
  std::function<void(uint64_t done_bytes, uint64_t total_bytes)> progress;
  const std::atomic<bool>* stop = nullptr;  // if true, the check soon ends with Cancelled
};

// Checks a store and changes nothing. Damage is in the report; an error means that the check could
// not be made. REQUIRES: no other process has the store (StoreView::Wanted::kAlone).
absl::StatusOr<StoreCheckReport> CheckStore(const StoreView& view, IoEngine* io,
                                            const StoreCheckOptions& options);

// Reclaims the orphans: returns ends of files and leftovers to the file systems, and adds unnamed
// bytes to the store's free space. Closes the view's catalog. REQUIRES: the store has no damage.
absl::Status ReclaimOrphans(StoreView* view, const std::vector<Orphan>& orphans);

}  // namespace spillway::io

#endif  // SPILLWAY_IO_STORE_STORE_CHECK_H_
