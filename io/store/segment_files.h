// SPDX-License-Identifier: Apache-2.0
//
// The files that extents lie in: numbered segment files of bounded size in each store folder, made
// on demand, opened on first use, grown ahead of it, and synced before a commit. Which of their
// bytes are free is the allocator's.
//
// One idea: a file grows by fallocate, so a full file system is found when room is asked for, not
// by a write that is already on its way. The step amortises that call's cost (up to 2 ms each,
// measured on ext4).
//
// What a file costs is paid when it is used: opening a store lists names and asks for the size only
// of files that may have grown since the last commit, and of open files there are at most half of
// what the process may have, the least recently used being closed for others.

#ifndef SPILLWAY_IO_STORE_SEGMENT_FILES_H_
#define SPILLWAY_IO_STORE_SEGMENT_FILES_H_

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "io/direct_file.h"
#include "io/io_engine.h"
#include "io/store/catalog_change.h"
#include "io/store/store_folder.h"

namespace spillway::io {

// The bound on the size of a segment file. Each 64 segments it doubles, so that a store of 16 TB in
// one folder needs about 500 files and not 16,000.
uint64_t SegmentBoundBytes(uint64_t segment_bytes, uint32_t segment);

// The segment files of all folders, registered with an IoEngine while they are open. `folders` and
// `io` must outlive it, and no request may be in flight when it goes. Externally synchronised.
class SegmentFiles {
 public:
  struct Options {
    uint64_t segment_bytes = 0;  // bound on the first files, a multiple of kIoAlignment
    Announce announce;
  };
  // Bytes that exist in a file from now on.
  struct Region {
    uint32_t segment = 0;
    uint64_t offset = 0;
    uint64_t size_bytes = 0;
  };

  SegmentFiles(const std::vector<StoreFolder>* folders, Options options, IoEngine* io);
  SegmentFiles(const SegmentFiles&) = delete;
  SegmentFiles& operator=(const SegmentFiles&) = delete;
  ~SegmentFiles();

  // Lists the files that are there, and opens none. DataLoss: one that the catalog knows is
  // missing. Bytes beyond what it says, or of files that it does not know, are what a crash has
  // left: tails. The sizes of the newest file and of those that the catalog does not know are
  // looked at now, those of others when they are opened, or trimmed. DataLoss then: it is shorter
  // than the catalog says.
  absl::Status Load(const std::vector<CatalogSegment>& known);
  // The next tail of a device, in use from now on; none: there is none.
  std::optional<Region> AdoptTail(uint16_t device);
  // Adds space to the newest file or starts another: `wanted_bytes`, or less where the file ends,
  // but at least `needed_bytes` (both multiples of kIoAlignment). ResourceExhausted: the file
  // system is full; the file is as it was. The device must have no tails.
  absl::StatusOr<Region> Grow(uint16_t device, uint64_t needed_bytes, uint64_t wanted_bytes);

  // ResourceExhausted: as many files as may be open are in use, or the process has no descriptor
  // left; it may go better once one of them is not.
  absl::StatusOr<FileUse> File(uint16_t device, uint32_t segment);
  std::string Path(uint16_t device, uint32_t segment) const {
    return (*folders_)[device].SegmentPath(segment);
  }
  // Whether the extent lies within what is known of its file.
  bool Holds(const Extent& extent) const;
  uint64_t written_bytes(uint16_t device, uint32_t segment) const;
  // Of all files: what is in use or free, tails that were seen included.
  uint64_t total_bytes() const { return total_bytes_; }

  // The extent was handed out: bytes before its end count as written.
  void HandedOut(const Extent& extent);
  // What differs from what the catalog knows goes into the change; Flushed, when it has succeeded.
  absl::Status AddTo(CatalogChange* change) const;
  void Flushed();

  // Giving back. Cut leaves the file's first `size_bytes` in use; the rest is a tail. CutTails then
  // takes all tails from the files, removing those of which nothing is left: only once the catalog
  // knows. Punch makes a hole. Both give the bytes that the file systems got back.
  std::vector<Region> Sizes(uint16_t device) const;  // of each file: [0, in use)
  void Cut(uint16_t device, uint32_t segment, uint64_t size_bytes);
  absl::StatusOr<uint64_t> CutTails();
  absl::StatusOr<uint64_t> Punch(uint16_t device, const Region& hole);

  // The segment was written; the next Sync includes it.
  void Touch(uint16_t device, uint32_t segment) { touched_.insert({device, segment}); }
  // Makes all that was written, and the names of new files, durable. A failure is final: the kernel
  // reports lost writes once and then forgets them, so a second sync would prove nothing.
  absl::Status Sync();

 private:
  using Key = std::pair<uint16_t, uint32_t>;
  struct OpenFile {
    DirectFile file;
    FileId id;
  };
  struct Segment {
    std::shared_ptr<OpenFile> open;      // null: not now
    std::list<Key>::iterator last_used;  // in open_; if it is open
    bool is_measured = false;            // file_bytes is what the file has, not what it should have
    uint64_t file_bytes = 0;             // whole units
    uint64_t size_bytes = 0;             // in use: what the allocator was told of
    uint64_t written_bytes = 0;          // bytes from here on were never handed out
    uint64_t catalog_size_bytes = 0;
    uint64_t catalog_written_bytes = 0;
    bool is_known() const {
      return size_bytes == catalog_size_bytes && written_bytes == catalog_written_bytes;
    }
  };
  struct Device {
    std::map<uint32_t, Segment> segments;
    bool has_new_files = false;
  };

  uint16_t num_devices() const { return static_cast<uint16_t>(devices_.size()); }
  absl::StatusOr<Segment*> Open(uint16_t device, uint32_t segment, int flags);
  absl::StatusOr<DirectFile> OpenFor(const std::string& path, int flags);
  bool CloseIdle();
  void Close(Segment* segment);
  absl::Status SyncFile(const DirectFile& file);
  absl::Status Measure(uint16_t device, uint32_t number, Segment* segment);
  void SetFileBytes(Segment* segment, uint64_t bytes);
  absl::Status Extend(Segment* segment, uint64_t size_bytes);
  absl::StatusOr<Region> GrowNewest(uint16_t device, uint64_t needed_bytes, uint64_t wanted_bytes);
  absl::Status Remove(uint16_t device, uint32_t segment);

  const std::vector<StoreFolder>* const folders_;
  const Options options_;
  IoEngine* const io_;
  const size_t max_open_;
  std::vector<Device> devices_;
  std::list<Key> open_;  // the most recently used first
  uint64_t total_bytes_ = 0;
  std::set<Key> touched_;
  absl::Status sync_error_;
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_STORE_SEGMENT_FILES_H_
