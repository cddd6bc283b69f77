// SPDX-License-Identifier: Apache-2.0
//
// Whether a store is whole: every invariant of io/FORMAT.md, the digest of every commit that it
// keeps, and the checksum of every page. What a crash may leave without harm, bytes that nothing
// names, is told apart from damage, and can be reclaimed.
//
// One idea: one walk over all extents in the order in which they lie finds what overlaps, what is
// free and named at once, what is neither, which digests do not add up, and reads each byte once,
// in order.

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

// One thing that is not as it must be. Fields that say nothing are empty.
struct StoreFinding {
  std::string message;                    // whole, with all that follows
  std::string tensor;                     // its name
  std::optional<uint64_t> page;           // in the tensor
  std::string path;                       // of the file
  std::optional<uint64_t> offset;         // in the file
  std::vector<std::string> commits = {};  // "last commit", "snapshot 'a'": those that need it
};

// Bytes that nothing names: of no use and no harm.
struct Orphan {
  enum class Kind : uint8_t {
    kUnnamed,   // in a file that the catalog knows: neither a page's nor free
    kTail,      // of a segment file, beyond what the catalog knows; all of it if it knows nothing
    kLeftover,  // a file of a store that was never finished
  } kind = Kind::kUnnamed;
  uint16_t device = 0;
  uint32_t segment = 0;  // kUnnamed, kTail
  std::string path;
  uint64_t offset = 0;
  uint64_t size_bytes = 0;
};

struct StoreCheckReport {
  uint64_t tensors = 0;  // of the last commit
  uint64_t pages = 0;    // rows: of the last commit and of snapshots
  uint64_t extents = 0;
  uint64_t used_bytes = 0;  // of extents
  uint64_t free_bytes = 0;
  uint64_t read_bytes = 0;
  uint64_t snapshots = 0;
  uint64_t damage = 0;                 // how many findings there are
  std::vector<StoreFinding> findings;  // the first of them
  uint64_t orphan_bytes = 0;
  std::vector<Orphan> orphans;
};

struct StoreCheckOptions {
  bool read_pages = true;  // false: the catalog alone
  size_t max_findings = 100;
  // Called now and then with bytes of extents walked over and in all. May be empty.
  std::function<void(uint64_t done_bytes, uint64_t total_bytes)> progress;
  const std::atomic<bool>* stop = nullptr;  // true: end soon, with Cancelled
};

// The store must be nobody else's (StoreView::Wanted::kAlone); nothing is changed. Damage is in the
// report; an error means that the check could not be made.
absl::StatusOr<StoreCheckReport> CheckStore(const StoreView& view, IoEngine* io,
                                            const StoreCheckOptions& options);

// Gives back what `orphans` lists: files' ends and leftovers to the file systems, unnamed bytes to
// the store's free space. For a store without damage. The view's catalog is closed by it.
absl::Status ReclaimOrphans(StoreView* view, const std::vector<Orphan>& orphans);

}  // namespace spillway::io

#endif  // SPILLWAY_IO_STORE_STORE_CHECK_H_
