// SPDX-License-Identifier: Apache-2.0
//
// The files that extents lie in: numbered segment files of bounded size in each store folder. They
// are made on demand, opened on first use, grown before their bytes are used, and synced before a
// commit. The allocator tracks which of their bytes are free.
//
// One idea: a file grows by fallocate, so a full file system is detected when room is requested,
// not by a write in flight. A file grows in steps to amortise the cost of that call, which waits
// for the file's requests in flight (GrowBytes). Only the files of a sparse store grow by holes.
//
// The cost of a file is paid when the file is used. Opening a store lists names, and reads the size
// only of files that may have grown since the last commit. At most half of the files that the
// process may have open are open; the least recently used are closed for others.

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

// Returns the bound on the size of a segment file. It doubles every 64 segments, so that a store of
// 16 TB in one folder needs about 500 files and not 16,000.
uint64_t SegmentBoundBytes(uint64_t segment_bytes, uint32_t segment);

// The segment files of all folders, registered with an IoEngine while they are open. `folders` and
// `io` must outlive it, and no request may be in flight when it is destroyed. Externally
// synchronised.
class SegmentFiles {
 public:
  struct Options {
    uint64_t segment_bytes = 0;  // bound on the first files; a multiple of kIoAlignment
    bool sparse = false;         // as in StoreOptions
    Announce announce;
    Announce on_lost_file;  // as in StoreOptions
  };
  // A range of bytes in a segment file.
  struct Region {
    uint32_t segment = 0;
    uint64_t offset = 0;
    uint64_t size_bytes = 0;
  };

  SegmentFiles(const std::vector<StoreFolder>* folders, Options options, IoEngine* io);
  SegmentFiles(const SegmentFiles&) = delete;
  SegmentFiles& operator=(const SegmentFiles&) = delete;
  ~SegmentFiles();

  // Lists the files that exist, and opens none. DataLoss if a file that the catalog lists is
  // missing; with on_lost_file, the file then counts as lost, and opening it is DataLoss.
  // Bytes beyond the size in the catalog, and files that it does not list, were left by a
  // crash: they are tails. Load reads the sizes of the newest file of each folder and of the files
  // that the catalog does not list. The sizes of other files are read when they are opened or
  // trimmed. When a size is read, DataLoss if the file is shorter than the catalog says.
  absl::Status Load(const std::vector<CatalogSegment>& known);
  // Takes the next tail of a device into use, and returns it; none if there is no tail.
  std::optional<Region> AdoptTail(uint16_t device);
  // Adds space to the newest file, or starts another file: `wanted_bytes`, or less where the file
  // reaches its bound, but at least `needed_bytes` (both multiples of kIoAlignment).
  // ResourceExhausted if the file system is full; the file is unchanged in that case. REQUIRES: the
  // device has no tails.
  absl::StatusOr<Region> Grow(uint16_t device, uint64_t needed_bytes, uint64_t wanted_bytes);

  // Returns the file, and opens it if it is not open. ResourceExhausted if as many files as may be
  // open are in use, or if the process has no descriptor left; a later call may succeed.
  absl::StatusOr<FileUse> File(uint16_t device, uint32_t segment);
  std::string Path(uint16_t device, uint32_t segment) const {
    return (*folders_)[device].SegmentPath(segment);
  }
  // The lost files, by folder and number. A lost file has the size that the catalog knows.
  const std::set<std::pair<uint16_t, uint32_t>>& lost() const { return lost_; }
  bool IsLost(uint16_t device, uint32_t segment) const { return lost_.contains({device, segment}); }
  // Whether the extent lies within its file, tails excluded.
  bool Holds(const Extent& extent) const;
  uint64_t written_bytes(uint16_t device, uint32_t segment) const;
  // Size of all files: bytes in use and free, including the tails that were found.
  uint64_t total_bytes() const { return total_bytes_; }

  // Records that the extent was handed out: bytes before its end count as written.
  void HandedOut(const Extent& extent);
  // AddTo adds to the change what differs from the catalog. Call Flushed when the change has
  // succeeded.
  absl::Status AddTo(CatalogChange* change) const;
  void Flushed();

  // Returning space to the file systems. Cut keeps the file's first `size_bytes` in use; the rest
  // becomes a tail. CutTails then cuts all tails off the files, and removes files of which nothing
  // is left. Call it only when the catalog has the new sizes. Punch makes a hole. CutTails and
  // Punch return the number of bytes that the file systems got back.
  std::vector<Region> Sizes(uint16_t device) const;  // for each file: [0, bytes in use)
  void Cut(uint16_t device, uint32_t segment, uint64_t size_bytes);
  absl::StatusOr<uint64_t> CutTails();
  absl::StatusOr<uint64_t> Punch(uint16_t device, const Region& hole);

  // Records that the segment was written, so that the next Sync includes it.
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
    std::shared_ptr<OpenFile> open;      // null if not open
    std::list<Key>::iterator last_used;  // position in open_, if it is open
    bool is_measured = false;            // file_bytes was read from the file, not from the catalog
    uint64_t file_bytes = 0;             // size of the file, in whole units
    uint64_t size_bytes = 0;             // what the allocator was given; the rest is a tail
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
  absl::Status SyncFailed(const absl::Status& status);
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
  std::list<Key> open_;  // most recently used first
  uint64_t total_bytes_ = 0;
  std::set<Key> touched_;
  std::set<Key> lost_;
  absl::Status sync_error_;
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_STORE_SEGMENT_FILES_H_
