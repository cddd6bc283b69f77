// SPDX-License-Identifier: Apache-2.0
//
// Room on the disks of a store: the allocator's free runs, loaded from the catalog as they are
// needed, the files that grow when it has none, whose turn it is, and the limits of budget and file
// systems. Which page lies in which extent is the ledger's.
//
// One idea: room is refused while it is asked for, never by a write that is on its way, and the
// catalog's own growth is set aside so that a full store can still commit.

#ifndef SPILLWAY_IO_STORE_STORE_SPACE_H_
#define SPILLWAY_IO_STORE_STORE_SPACE_H_

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "io/store/catalog.h"
#include "io/store/device_rotation.h"
#include "io/store/extent_allocator.h"
#include "io/store/segment_files.h"
#include "io/store/store.h"
#include "io/store/store_folder.h"

namespace spillway::io {

// A segment file grows by as much as the store has, within these two, or by a part of what the disk
// has left if that is less: a small store has small files, and a large one asks seldom. A fallocate
// costs up to 2 ms on ext4, and on tmpfs, which clears what it gives, 1 to 2 ms a MiB; a page's
// write costs 0.5 ms a MiB.
inline constexpr uint64_t kLeastGrowBytes = uint64_t{4} << 20;
inline constexpr uint64_t kGrowBytes = uint64_t{64} << 20;

// What the catalog and its log may take of the first folder's file system beside `extent_bytes` of
// pages; set aside while room is given out.
uint64_t CatalogReserveBytes(uint64_t extent_bytes, uint64_t page_bytes);

// Externally synchronised. `folders`, `catalog` and `io` must outlive it.
class StoreSpace {
 public:
  // Looks at the segment files that exist. `used_bytes` of them are the last commit's and the
  // snapshots'. DataLoss: a file is missing or too short.
  static absl::StatusOr<std::unique_ptr<StoreSpace>> Open(const StoreOptions& options,
                                                          uint64_t used_bytes,
                                                          const std::vector<StoreFolder>* folders,
                                                          Catalog* catalog, IoEngine* io);

  // As in Store.
  absl::StatusOr<Extent> Allocate(uint32_t size_bytes);
  uint64_t used_bytes() const { return extents_.used_bytes(); }
  uint64_t available_bytes() const;
  std::optional<DeviceProfile> Profile(uint16_t device) const { return profiles_[device]; }
  absl::Status SetProfile(uint16_t device, const DeviceProfile& profile);
  void SetSpeed(uint16_t device, double share) { rotation_.SetSpeed(device, share); }

  // An extent that was allocated and that no commit names.
  void Release(const Extent& extent) { extents_.Free(extent); }
  // An extent that was named in the catalog until its last change.
  void Unnamed(const Extent& extent);

  // Giving back, in steps. MakeHoles gives the bytes of all free runs back, and says how many it
  // were; CutEnds takes the free ends of files out of use; when the catalog knows that, CutTails of
  // the files shortens them.
  absl::StatusOr<uint64_t> MakeHoles();
  void CutEnds();

  SegmentFiles& files() { return files_; }
  const SegmentFiles& files() const { return files_; }

 private:
  // What was loaded of a device's free_space: everything before `next`.
  struct Loaded {
    ChunkId next;
    bool all = false;
  };

  StoreSpace(const StoreOptions& options, uint64_t used_bytes,
             const std::vector<StoreFolder>* folders, Catalog* catalog, IoEngine* io);
  absl::Status Load();
  absl::StatusOr<bool> LoadMore(uint16_t device);
  void AddFree(uint16_t device, uint32_t segment, uint64_t offset, uint64_t size_bytes);
  absl::StatusOr<std::optional<Extent>> TakeExisting(uint16_t device, uint32_t size_bytes);
  absl::StatusOr<Extent> Find(uint32_t size_bytes);
  uint64_t CatalogGrowthBytes(uint64_t extent_bytes) const;
  absl::StatusOr<uint64_t> FreeBytes(uint16_t device) const;
  absl::Status Grow(uint16_t device, uint64_t needed_bytes);
  absl::Status OverBudget(uint64_t size_bytes) const;
  absl::Status NoRoom(const absl::Status& cause, uint64_t size_bytes) const;

  const StoreOptions options_;
  const uint64_t page_bytes_;
  const std::vector<StoreFolder>* const folders_;
  Catalog* const catalog_;
  std::vector<dev_t> file_systems_;  // of each folder
  SegmentFiles files_;
  ExtentAllocator extents_;
  std::vector<Loaded> loaded_;  // of each folder
  std::vector<std::optional<DeviceProfile>> profiles_;
  DeviceRotation rotation_;
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_STORE_STORE_SPACE_H_
