// SPDX-License-Identifier: Apache-2.0
//
// The store: where tensor pages rest on NVMe, and what was committed. It hands out extents in
// segment files, remembers which extent holds each page, and switches the durable state in one
// catalog transaction. It moves no page itself: the mover does, through the IoEngine, with the
// addresses that the store gives.
//
// One idea: data is written out of place. An extent that the last commit names is never written
// again until a later commit has replaced it.

#ifndef SPILLWAY_IO_STORE_STORE_H_
#define SPILLWAY_IO_STORE_STORE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "io/direct_file.h"
#include "io/io_engine.h"

namespace spillway::io {

// Room for one page: a run of bytes in a segment file. size_bytes is a multiple of kIoAlignment.
struct Extent {
  uint16_t device = 0;   // index of the store folder
  uint32_t segment = 0;  // index of the segment file in it
  uint64_t offset = 0;
  uint32_t size_bytes = 0;
  friend bool operator==(const Extent&, const Extent&) = default;
};

// A page at rest: its extent, where in it the page begins, and the XXH3-64 of its `content_bytes`
// bytes. Several small pages may share one extent: then each is `packed`, and the extent is in use
// as long as one of them is.
struct PageRecord {
  Extent extent;
  uint32_t content_bytes = 0;
  uint64_t checksum = 0;
  uint32_t skip_bytes = 0;  // of the extent, before the page; 0 unless packed
  bool packed = false;
  friend bool operator==(const PageRecord&, const PageRecord&) = default;
};

// What the catalog keeps of a tensor. The store knows tensors as names and pages; the description
// is opaque text (JSON of dtype, shape, role, tile_rows) that the engine compares.
struct TensorRecord {
  std::string name;
  std::string description;
  uint64_t num_pages = 0;
};

// What a short calibration found of a folder's device: the request size and the queue depths for
// reads alone, writes alone and writes beside reads, and what these gave.
struct DeviceProfile {
  uint32_t request_bytes = 0;
  int read_depth = 0;
  int write_depth = 0;
  int mixed_write_depth = 0;
  double read_bytes_per_second = 0;
  double write_bytes_per_second = 0;
  friend bool operator==(const DeviceProfile&, const DeviceProfile&) = default;
};

// A commit that is kept, by name.
struct SnapshotRecord {
  std::string label;
  uint64_t number = 0;  // of the commit
  std::string time;     // when the commit was made: RFC 3339, UTC
  std::string user_state;
};

// A file that stays open for as long as this is held: at least until the requests on it have ended.
using FileUse = std::shared_ptr<const FileId>;

// A tensor's index in this store, dense from zero, stable for the life of the Store object.
using TensorIndex = uint32_t;

inline constexpr uint64_t kDefaultPageBytes = uint64_t{1} << 20;
inline constexpr uint64_t kDefaultSegmentBytes = uint64_t{1} << 30;

struct StoreOptions {
  std::vector<std::string> folders;
  bool create = true;  // false: NotFound if there is no store
  // FailedPrecondition if a store is there, committed, uncommitted or half made. (What is left of a
  // scratch store whose process was killed is removed.)
  bool must_not_exist = false;
  // The destructor removes what was made. Implies must_not_exist.
  bool scratch = false;
  // The destructor removes a store that this call made and that got no commit: it holds nothing.
  bool remove_if_empty = false;
  // Open it even where its disk has no room for the index of the catalog's log, as to trim it. Then
  // nobody can look beside.
  bool when_full = false;
  // Of extents, over all folders: committed and new together. Segment files grow beyond it only
  // where free runs are too short for what is asked.
  uint64_t max_bytes = UINT64_MAX;
  // A multiple of kIoAlignment, at most 1 GiB and segment_bytes. 0: the store's own, or 1 MiB for a
  // new one. Another than the store's is InvalidArgument once there is a commit.
  uint64_t page_bytes = 0;
  // Bound on the first segment files; io/FORMAT.md says how it rises. A multiple of kIoAlignment.
  uint64_t segment_bytes = kDefaultSegmentBytes;
  // Told about a file system that refuses O_DIRECT, once for each file; may be empty.
  Announce announce;
};

// Externally synchronised: one caller at a time.
class Store {
 public:
  // Opens or makes the store. What an earlier run wrote after its last commit is reclaimed. Errors:
  // FailedPrecondition (exists, is locked by another process, or is no Spillway store: nothing is
  // touched), NotFound, InvalidArgument (page size, folder count or order differs), DataLoss
  // (catalog), Unavailable (not writable).
  static absl::StatusOr<std::unique_ptr<Store>> Open(const StoreOptions& options, IoEngine* io);
  virtual ~Store() = default;

  virtual uint64_t page_bytes() const = 0;
  virtual uint16_t num_devices() const = 0;  // folders
  // 32 hexadecimal digits, drawn when the store was made.
  virtual const std::string& id() const = 0;
  // Of the last commit, which count from 1; 0: never committed.
  virtual uint64_t commit_number() const = 0;

  // Entries load when they are first looked at, so a look-up can fail as opening can.

  // A tensor of the last commit, or one added since.
  virtual absl::StatusOr<std::optional<TensorIndex>> FindTensor(std::string_view name) = 0;
  // Of a tensor that was found or added.
  virtual const TensorRecord& Tensor(TensorIndex tensor) const = 0;
  // A transient tensor has extents but is never committed. AlreadyExists for a name in use.
  virtual absl::StatusOr<TensorIndex> AddTensor(TensorRecord record, bool transient) = 0;
  // The next commit does not have the tensor. Its name is free at once; its extents are free after
  // that commit, unless a snapshot needs them. The index must not be used again.
  virtual void RemoveTensor(TensorIndex tensor) = 0;

  // The newest copy of a page; none: never written (reads as zeros).
  virtual absl::StatusOr<std::optional<PageRecord>> FindPage(TensorIndex tensor, uint64_t page) = 0;

  // Room for a page, or for several small ones, preferring extents that were written before.
  // Folders take turns in proportion to their profiles' bandwidths, equally if one has none.
  // ResourceExhausted says what was asked, the limit, the use and how much more is needed. Growing
  // a file may fail with ENOSPC (ResourceExhausted).
  virtual absl::StatusOr<Extent> Allocate(uint32_t size_bytes) = 0;
  // Returns an extent that was allocated and never recorded.
  virtual void Release(const Extent& extent) = 0;
  // The file to read or write an extent through, opened if it is not, and its path for messages.
  // ResourceExhausted: too many files are in use; it may go better once some are not.
  virtual absl::StatusOr<FileUse> File(const Extent& extent) = 0;
  virtual std::string Path(const Extent& extent) const = 0;

  // The page was written there. The copy before it is freed at once if no commit names it, else
  // after the next commit that leaves it to no snapshot. Pages are added to a shared extent before
  // the commit that first names it, not after.
  virtual void Record(TensorIndex tensor, uint64_t page, const PageRecord& record) = 0;
  // The page's bytes are wanted no longer (a discarded transient); it reads as zeros again.
  virtual void Forget(TensorIndex tensor, uint64_t page) = 0;

  // Makes every page recorded so far the durable state, with the user state: (1) sync data on every
  // folder, (2) one catalog transaction with a durable sync, (3) free what only the commit before
  // named. On an error the last commit stands in this store and the call may be repeated (it fails
  // for good after a failed sync of data); whoever opens the store next may find either commit,
  // whole.
  virtual absl::Status Commit(std::string_view user_state) = 0;
  // Of the last commit; none: never committed.
  virtual std::optional<std::string> UserState() const = 0;

  // Keeps the last commit under a name, by reference: nothing is copied. What was recorded since is
  // no part of it. `label` is 1 to 128 bytes of [A-Za-z0-9._-], else InvalidArgument.
  // AlreadyExists; FailedPrecondition if there is no commit.
  virtual absl::Status Snapshot(std::string_view label) = 0;
  virtual absl::StatusOr<std::vector<SnapshotRecord>> Snapshots() = 0;  // oldest commit first
  // Makes a new commit with a snapshot's content and user state, in one transaction. What was
  // recorded since the last commit is dropped, except in transient tensors. Tensors that were found
  // or added keep their indexes; those that the snapshot lacks read as zeros, and are added anew by
  // the next commit. One that was removed stays removed from this Store, but its name may be found
  // again. NotFound; FailedPrecondition, and nothing changes, if such a tensor has
  // another description or number of pages in the snapshot.
  virtual absl::Status Restore(std::string_view label) = 0;
  // Forgets a snapshot and frees what nothing else needs. NotFound.
  virtual absl::Status Drop(std::string_view label) = 0;

  // Gives free bytes back to the file systems: cuts the ends of segment files and punches holes.
  // Slow where the device discards; never beside a measurement. Bytes given back.
  virtual absl::StatusOr<uint64_t> Trim() = 0;

  // The device's calibration, kept in the catalog; none: not calibrated.
  virtual std::optional<DeviceProfile> Profile(uint16_t device) const = 0;
  virtual absl::Status SetProfile(uint16_t device, const DeviceProfile& profile) = 0;
  // How fast the device is now, as a share of its calibration (above 0): new extents are shared out
  // by it, until the store is closed.
  virtual void SetSpeed(uint16_t device, double share) = 0;

  // Extents in use: allocated, the newest copies, and those that only the last commit or a snapshot
  // names.
  virtual uint64_t used_bytes() const = 0;
  // Bytes that could be had: under max_bytes and in the file systems' free space (less what the
  // catalog may need), counting free extents.
  virtual uint64_t available_bytes() const = 0;
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_STORE_STORE_H_
