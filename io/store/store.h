// SPDX-License-Identifier: Apache-2.0
//
// The store keeps tensor pages on NVMe, and records what was committed. It hands out extents in
// segment files, records which extent holds each page, and switches the durable state in one
// catalog transaction. It moves no page itself: its caller does that through the IoEngine, at the
// addresses that the store returns.
//
// One idea: data is written out of place. An extent that the last commit names is never written
// again until a later commit has replaced it.

#ifndef SPILLWAY_IO_STORE_STORE_H_
#define SPILLWAY_IO_STORE_STORE_H_

#include <atomic>
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

// A run of bytes in a segment file: room for one page, or for several small ones. size_bytes is a
// multiple of kIoAlignment.
struct Extent {
  uint16_t device = 0;   // index of the store folder
  uint32_t segment = 0;  // index of the segment file in it
  uint64_t offset = 0;
  uint32_t size_bytes = 0;
  friend bool operator==(const Extent&, const Extent&) = default;
};

// A stored page: its extent, where the page begins in it, and the XXH3-64 of its `content_bytes`
// bytes. Several small pages may share one extent. Each of them is `packed` then, and the extent is
// in use as long as one of them is.
struct PageRecord {
  Extent extent;
  uint32_t content_bytes = 0;
  uint64_t checksum = 0;
  uint32_t skip_bytes = 0;  // offset of the page in the extent; 0 unless packed
  bool packed = false;
  friend bool operator==(const PageRecord&, const PageRecord&) = default;
};

// What the catalog stores about a tensor. The store handles tensors as names and pages only; the
// description is opaque text (JSON of dtype, shape, role, tile_rows) that the engine compares.
struct TensorRecord {
  std::string name;
  std::string description;
  uint64_t num_pages = 0;
};

// Result of a short calibration of a folder's device: the request size, the queue depths for reads
// alone, writes alone and writes beside reads, and the rates that were reached with these. Depths
// are counted in requests of request_bytes.
struct DeviceProfile {
  uint32_t request_bytes = 0;
  int read_depth = 0;
  int write_depth = 0;
  int mixed_write_depth = 0;
  double read_bytes_per_second = 0;
  double write_bytes_per_second = 0;
  friend bool operator==(const DeviceProfile&, const DeviceProfile&) = default;
};

// A commit that is retained under a name.
struct SnapshotRecord {
  std::string label;
  uint64_t number = 0;  // of the commit
  std::string time;     // when the commit was made: RFC 3339, UTC
  std::string user_state;
};

// Keeps a file open for as long as it is held. Hold it at least until the requests on the file have
// ended.
using FileUse = std::shared_ptr<const FileId>;

// A tensor's index in this store, dense from zero, stable for the life of the Store object.
using TensorIndex = uint32_t;

inline constexpr uint64_t kDefaultPageBytes = uint64_t{1} << 20;
inline constexpr uint64_t kMaxPageBytes = uint64_t{1} << 30;
inline constexpr uint64_t kDefaultSegmentBytes = uint64_t{1} << 30;

struct StoreOptions {
  std::vector<std::string> folders;
  bool create = true;  // false: NotFound if there is no store
  // FailedPrecondition if there is a store, whether committed, uncommitted or half made. (The
  // remains of a scratch store whose process was killed are removed.)
  bool must_not_exist = false;
  // The destructor removes the store. Implies must_not_exist.
  bool scratch = false;
  // Files grow without claiming space on the disk: what is not written is a hole that reads as
  // zeros, and a write may find the disk full. To measure how a layout behaves that has no room
  // here. Such a store is marked, and only a call with this option opens it: everybody else takes
  // it for a scratch store whose process was killed. With must_not_exist, so does this call. The
  // store stays when it is closed, unless it is `scratch`. FailedPrecondition for a store that is
  // not sparse.
  bool sparse = false;
  // The destructor removes the store if this call made it and it got no commit: it holds nothing.
  bool remove_if_empty = false;
  // Open the store even if its disk has no room for the index of the catalog's log, for example to
  // trim it. No other process can read the store then.
  bool when_full = false;
  // If not empty, the store opens even if segment files are missing, and this is called for each.
  // Nothing is allocated in a lost file, its pages cannot be read (DataLoss), and a commit or
  // restore that would name pages in it is refused (DataLoss). Trim forgets it once nothing lies in
  // it.
  Announce on_lost_file = {};
  // Bound on the bytes of extents in all folders, committed and new together. Segment files grow
  // beyond it only if no free run is long enough for what is requested.
  uint64_t max_bytes = UINT64_MAX;
  // A multiple of kIoAlignment, at most kMaxPageBytes and at most segment_bytes. 0 means the
  // store's own page size; for a new store, 1 MiB or segment_bytes, whichever is less. A value
  // other than the store's is InvalidArgument once there is a commit.
  uint64_t page_bytes = 0;
  // Bound on the first segment files; io/FORMAT.md says how it rises. A multiple of kIoAlignment.
  uint64_t segment_bytes = kDefaultSegmentBytes;
  // If not null and true, a commit of many pages that is under way ends soon with Cancelled, and
  // has not taken place.
  const std::atomic<bool>* stop = nullptr;
  // Called for each file that is opened on a file system that refuses O_DIRECT, for the first
  // extent that is retired, and when the catalog's log is first found to grow without bound; may be
  // empty.
  Announce announce;
};

// Externally synchronised: one caller at a time.
//
// If a folder is removed, moved or replaced while the store is open, no file that lies at its path
// then is opened, changed or removed. Commit, Snapshot, Restore, Drop, Trim, and calls that open or
// make a segment file are Unavailable.
class Store {
 public:
  // Opens or makes the store, and reclaims what an earlier run wrote after its last commit. Errors:
  // FailedPrecondition (exists, is locked by another process, or is no Spillway store: nothing is
  // changed), NotFound, InvalidArgument (page size, folder count or order differs), DataLoss
  // (catalog), Unavailable (not writable).
  static absl::StatusOr<std::unique_ptr<Store>> Open(const StoreOptions& options, IoEngine* io);
  virtual ~Store() = default;

  virtual uint64_t page_bytes() const = 0;
  virtual uint16_t num_devices() const = 0;  // folders
  // 32 hexadecimal digits, drawn at random when the store was made.
  virtual const std::string& id() const = 0;
  // Number of the last commit, counted from 1; 0 if the store was never committed.
  virtual uint64_t commit_number() const = 0;

  // Entries of the catalog are loaded on first use, so a look-up can fail with the errors of Open.

  // Finds a tensor of the last commit, or one that was added since; none if there is no such
  // tensor.
  virtual absl::StatusOr<std::optional<TensorIndex>> FindTensor(std::string_view name) = 0;
  // Returns the record of a tensor that was found or added.
  virtual const TensorRecord& Tensor(TensorIndex tensor) const = 0;
  // Adds a tensor. A transient tensor has extents but is never committed. AlreadyExists if the name
  // is in use.
  virtual absl::StatusOr<TensorIndex> AddTensor(TensorRecord record, bool transient) = 0;
  // Removes a tensor: the next commit does not have it. Its name is free at once; its extents are
  // free after that commit, unless a snapshot needs them. The index must not be used again.
  virtual void RemoveTensor(TensorIndex tensor) = 0;

  // Returns the newest copy of a page; none if the page has no copy (it reads as zeros).
  virtual absl::StatusOr<std::optional<PageRecord>> FindPage(TensorIndex tensor, uint64_t page) = 0;

  // Allocates room for a page, or for several small ones; prefers space that was written before.
  // Folders take turns in proportion to the bandwidths in their profiles, or equally if one has no
  // profile. ResourceExhausted says what was requested, the limit, the use and how much more is
  // needed; it is also the error if a file cannot grow (ENOSPC).
  virtual absl::StatusOr<Extent> Allocate(uint32_t size_bytes) = 0;
  // Frees an extent that was allocated and never recorded.
  virtual void Release(const Extent& extent) = 0;
  // Keeps an extent that was allocated and could not be written, because of `why`, out of use: the
  // next write would get the same bad place. It counts as used. It is freed when the store is
  // closed, when there is no other room, or when 256 were retired after it: then the device was out
  // of order, and not a few places of it. The first time, this is announced.
  virtual void Retire(const Extent& extent, const absl::Status& why) = 0;
  // File returns the file through which to read or write an extent, and opens it if it is not open.
  // ResourceExhausted if too many files are in use; a later call may succeed. Path returns the
  // file's path, for messages.
  virtual absl::StatusOr<FileUse> File(const Extent& extent) = 0;
  virtual std::string Path(const Extent& extent) const = 0;

  // Records that the page was written there. Its previous copy is freed at once if no commit names
  // it; otherwise after the next commit, unless a snapshot needs it. Pages may be added to a shared
  // extent before the commit that first names it, not after.
  virtual void Record(TensorIndex tensor, uint64_t page, const PageRecord& record) = 0;
  // Drops the page's copy, for example of a discarded transient tensor. The page reads as zeros
  // again.
  virtual void Forget(TensorIndex tensor, uint64_t page) = 0;

  // Makes every page recorded so far the durable state, together with the user state: (1) syncs the
  // data in every folder, (2) makes one catalog transaction with a durable sync, (3) frees what
  // only the previous commit named. After an error this store still has the last commit, and the
  // call may be repeated (after a failed sync of data it fails for good). Whoever opens the store
  // next may find either commit, complete.
  virtual absl::Status Commit(std::string_view user_state) = 0;
  // User state of the last commit; none if the store was never committed.
  virtual std::optional<std::string> UserState() const = 0;

  // Retains the last commit under a name, by reference: nothing is copied. Pages recorded since are
  // not part of it. `label` is 1 to 128 bytes of [A-Za-z0-9._-], else InvalidArgument.
  // AlreadyExists if the label is in use; FailedPrecondition if there is no commit.
  virtual absl::Status Snapshot(std::string_view label) = 0;
  virtual absl::StatusOr<std::vector<SnapshotRecord>> Snapshots() = 0;  // oldest commit first
  // Makes a new commit with a snapshot's content and user state, in one transaction. What was
  // recorded since the last commit is dropped, except in transient tensors. Tensors that were found
  // or added keep their indexes. Those that the snapshot lacks read as zeros, and the next commit
  // adds them anew. A tensor that was removed stays removed from this Store, but its name may be
  // found again. NotFound if there is no such snapshot. FailedPrecondition, and nothing changes, if
  // a tensor that was found or added has another description or number of pages in the snapshot, or
  // is transient here.
  virtual absl::Status Restore(std::string_view label) = 0;
  // Removes a snapshot and frees what nothing else needs. NotFound if there is no such snapshot.
  virtual absl::Status Drop(std::string_view label) = 0;

  // Returns free bytes to the file systems: cuts the ends of segment files and punches holes. Slow
  // if the device discards; do not call it during a measurement. Returns the number of bytes.
  virtual absl::StatusOr<uint64_t> Trim() = 0;

  // The device's calibration, which is kept in the catalog; none if it was not calibrated.
  virtual std::optional<DeviceProfile> Profile(uint16_t device) const = 0;
  virtual absl::Status SetProfile(uint16_t device, const DeviceProfile& profile) = 0;
  // Sets the device's current speed, as a share of its calibrated speed (above 0). New extents are
  // distributed by it until the store is closed.
  virtual void SetSpeed(uint16_t device, double share) = 0;

  // Bytes of the extents in use: those that were allocated, those of the newest copies, and those
  // that only the last commit or a snapshot names.
  virtual uint64_t used_bytes() const = 0;
  // Bytes that can still be allocated: within max_bytes, from free extents and the file systems'
  // free space (less what the catalog may need).
  virtual uint64_t available_bytes() const = 0;
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_STORE_STORE_H_
