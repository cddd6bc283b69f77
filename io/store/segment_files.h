// SPDX-License-Identifier: Apache-2.0
//
// The files that extents lie in: numbered segment files of bounded size in each store folder, made
// on demand, grown ahead of use, and synced before a commit. Which of their bytes are free is the
// allocator's.
//
// One idea: a file grows by fallocate, so a full file system is found when room is asked for, not
// by a write that is already on its way. The step amortises that call's cost (about 2 ms each,
// measured on ext4).

#ifndef SPILLWAY_IO_STORE_SEGMENT_FILES_H_
#define SPILLWAY_IO_STORE_SEGMENT_FILES_H_

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "io/direct_file.h"
#include "io/io_engine.h"
#include "io/store/store_folder.h"

namespace spillway::io {

// The bound on the size of a segment file. Each 64 segments it doubles, so that a store of 16 TB in
// one folder needs about 500 open files and not 16,000.
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

  // Opens the files that are there and gives what they hold, whole units only.
  absl::StatusOr<std::vector<Region>> OpenExisting(uint16_t device);
  // Adds space to the newest file or starts another: `wanted_bytes`, or less where the file ends,
  // but at least `needed_bytes` (both multiples of kIoAlignment). ResourceExhausted: the file
  // system is full; the file is as it was.
  absl::StatusOr<Region> Grow(uint16_t device, uint64_t needed_bytes, uint64_t wanted_bytes);

  FileId File(uint16_t device, uint32_t segment) const { return Find(device, segment).id; }
  std::string Path(uint16_t device, uint32_t segment) const {
    return Find(device, segment).file.path();
  }

  // The segment was written; the next Sync includes it.
  void Touch(uint16_t device, uint32_t segment) { touched_.insert({device, segment}); }
  // Makes all that was written, and the names of new files, durable. A failure is final: the kernel
  // reports lost writes once and then forgets them, so a second sync would prove nothing.
  absl::Status Sync();

 private:
  struct Segment {
    DirectFile file;
    FileId id;
    uint64_t size_bytes = 0;
  };
  struct Device {
    std::map<uint32_t, Segment> segments;
    bool has_new_files = false;
  };

  const Segment& Find(uint16_t device, uint32_t segment) const {
    return devices_[device].segments.at(segment);
  }
  absl::StatusOr<Segment*> OpenFile(uint16_t device, uint32_t segment, int flags);
  absl::Status Extend(Segment* segment, uint64_t size_bytes);
  absl::StatusOr<Region> GrowNewest(uint16_t device, uint64_t needed_bytes, uint64_t wanted_bytes);
  void CloseFile(uint16_t device, uint32_t segment);

  const std::vector<StoreFolder>* const folders_;
  const Options options_;
  IoEngine* const io_;
  std::vector<Device> devices_;
  std::set<std::pair<uint16_t, uint32_t>> touched_;
  absl::Status sync_error_;
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_STORE_SEGMENT_FILES_H_
