// SPDX-License-Identifier: Apache-2.0
//
// The part of SegmentFiles that fills holes. Trimming punches them, and a write into one takes room
// of the file system, which may have none left.

#include <fcntl.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "io/store/segment_files.h"
#include "src/base/errno_status.h"
#include "src/base/status_macros.h"

namespace spillway::io {
namespace {

uint64_t StoredBytes(const struct stat& info) {
  return static_cast<uint64_t>(info.st_blocks) * 512;
}

}  // namespace

bool SegmentFiles::HasHoles(uint16_t device, uint32_t segment) const {
  struct stat info;
  return ::stat(Path(device, segment).c_str(), &info) == 0 &&
         StoredBytes(info) < static_cast<uint64_t>(info.st_size);
}

absl::StatusOr<uint64_t> SegmentFiles::Fill(const Extent& extent) {
  SPILLWAY_ASSIGN_OR_RETURN(Segment* const segment, Open(extent.device, extent.segment, 0));
  const DirectFile& file = segment->open->file;
  struct stat before;
  struct stat after;
  int result = ::fstat(file.fd(), &before);
  if (result == 0) {
    do {
      result = ::fallocate(file.fd(), 0, static_cast<off_t>(extent.offset), extent.size_bytes);
    } while (result != 0 && errno == EINTR);
    // Without fallocate, whether there is room is known when the extent is written.
    if (result != 0 && (errno == EOPNOTSUPP || errno == ENOSYS || errno == EINVAL))
      return uint64_t{0};
  }
  if (result == 0) result = ::fstat(file.fd(), &after);
  if (result != 0) {
    return base::ErrnoToStatus(
        errno, absl::StrCat("fill a hole of ", file.path(), " at offset ", extent.offset, ", ",
                            extent.size_bytes, " bytes"));
  }
  return StoredBytes(after) - std::min(StoredBytes(before), StoredBytes(after));
}

}  // namespace spillway::io
