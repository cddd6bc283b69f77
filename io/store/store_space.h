// SPDX-License-Identifier: Apache-2.0
//
// Room on the disks of a store: the allocator's free runs, the files that grow when it has none,
// and the limits of budget and file systems. Which page lies in which extent is the ledger's.
//
// One idea: room is refused while it is asked for, never by a write that is on its way, and the
// catalog's own growth is set aside so that a full store can still commit.

#ifndef SPILLWAY_IO_STORE_STORE_SPACE_H_
#define SPILLWAY_IO_STORE_STORE_SPACE_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "io/store/extent_allocator.h"
#include "io/store/segment_files.h"
#include "io/store/store.h"
#include "io/store/store_folder.h"

namespace spillway::io {

// What the catalog and its log may take of the first folder's file system beside `extent_bytes` of
// pages; set aside while room is given out.
uint64_t CatalogReserveBytes(uint64_t extent_bytes, uint64_t page_bytes);

// Externally synchronised. `folders` and `io` must outlive it.
class StoreSpace {
 public:
  // Opens the segment files that exist; all their bytes are free until they are claimed.
  static absl::StatusOr<std::unique_ptr<StoreSpace>> Open(const StoreOptions& options,
                                                          uint64_t page_bytes,
                                                          const std::vector<StoreFolder>* folders,
                                                          IoEngine* io);

  // As in Store.
  absl::StatusOr<Extent> Allocate(uint32_t size_bytes);
  uint64_t available_bytes() const;

  ExtentAllocator& extents() { return extents_; }
  const ExtentAllocator& extents() const { return extents_; }
  SegmentFiles& files() { return files_; }

 private:
  StoreSpace(const StoreOptions& options, uint64_t page_bytes,
             const std::vector<StoreFolder>* folders, IoEngine* io);
  absl::Status OpenFiles();
  absl::StatusOr<uint64_t> FreeBytes(uint16_t device) const;
  absl::Status Grow(uint16_t device, uint64_t needed_bytes);
  absl::Status OverBudget(uint64_t size_bytes) const;
  absl::Status NoRoom(const absl::Status& cause, uint64_t size_bytes) const;

  const StoreOptions options_;
  const uint64_t page_bytes_;
  const std::vector<StoreFolder>* const folders_;
  std::vector<dev_t> file_systems_;  // of each folder
  SegmentFiles files_;
  ExtentAllocator extents_;
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_STORE_STORE_SPACE_H_
