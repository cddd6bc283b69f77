// SPDX-License-Identifier: Apache-2.0
//
// Space on the disks of a store: the allocator's free runs, which are loaded from the catalog as
// they are needed; the files, which grow if there is no free run; the order in which devices take
// turns; and the limits of the budget and of the file systems. Which page lies in which extent is
// left to the ledger.
//
// One idea: lack of room is reported when room is requested, never by a write in flight. Room for
// the catalog's own growth is reserved, so that a full store can still commit. A sparse store
// claims no room, so its disk does not limit it here.

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

// Returns by how many bytes a segment file grows, where the disk and the budget allow it, if each
// folder of the store has `folder_bytes` on average: by as many, from 4 to 64 MiB, or by a quarter
// of them, up to 1 GiB. So a small store has small files, and a large one grows them rarely: while
// a file grows, ext4 and XFS let no direct request to it begin, and first wait for those in flight.
// On tmpfs the call clears the memory, which takes 1 to 2 ms per MiB.
uint64_t GrowBytes(uint64_t folder_bytes);

// Returns the bytes that the catalog and its log may take of the first folder's file system beside
// `extent_bytes` of pages. They are reserved when room is allocated.
uint64_t CatalogReserveBytes(uint64_t extent_bytes, uint64_t page_bytes);

// Externally synchronised. `folders`, `catalog` and `io` must outlive it.
class StoreSpace {
 public:
  // Lists the segment files and checks them against the catalog. The last commit and the snapshots
  // use `used_bytes` of them. DataLoss if a file is missing or too short.
  static absl::StatusOr<std::unique_ptr<StoreSpace>> Open(const StoreOptions& options,
                                                          uint64_t used_bytes,
                                                          const std::vector<StoreFolder>* folders,
                                                          Catalog* catalog, IoEngine* io);

  // The following are as in Store.
  absl::StatusOr<Extent> Allocate(uint32_t size_bytes);
  uint64_t used_bytes() const { return extents_.used_bytes(); }
  uint64_t available_bytes() const;
  std::optional<DeviceProfile> Profile(uint16_t device) const { return profiles_[device]; }
  absl::Status SetProfile(uint16_t device, const DeviceProfile& profile);
  void SetSpeed(uint16_t device, double share) { rotation_.SetSpeed(device, share); }

  // Frees an extent that was allocated and that no commit names.
  void Release(const Extent& extent) { extents_.Free(extent); }
  // Frees an extent that the catalog named until its last change.
  void Unnamed(const Extent& extent);

  // Returning space to the file systems, in steps. MakeHoles punches a hole into every free run,
  // and returns the number of bytes that this gave back. CutEnds takes the free ends of files, and
  // lost files that are free, out of use. When the catalog has the new sizes,
  // SegmentFiles::CutTails shortens the files.
  absl::StatusOr<uint64_t> MakeHoles();
  absl::Status CutEnds();

  SegmentFiles& files() { return files_; }
  const SegmentFiles& files() const { return files_; }

 private:
  // How much of a device's free_space was loaded: everything before `next`.
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
  absl::Status LoadProfiles();
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
  std::vector<dev_t> file_systems_;  // by folder
  SegmentFiles files_;
  ExtentAllocator extents_;
  std::vector<Loaded> loaded_;  // by folder
  std::vector<std::optional<DeviceProfile>> profiles_;
  DeviceRotation rotation_;
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_STORE_STORE_SPACE_H_
