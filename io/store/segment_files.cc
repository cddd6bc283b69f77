// SPDX-License-Identifier: Apache-2.0

#include "io/store/segment_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "src/base/errno_status.h"
#include "src/base/status_macros.h"

namespace spillway::io {
namespace {

constexpr uint32_t kSegmentsPerDoubling = 64;
constexpr uint32_t kMaxDoublings =
    10;  // 1 TiB from 1 GiB: every file system in use holds such a file

// Beyond, unit numbers would not fit in 32 bits; only someone else can have made a file that large.
constexpr uint64_t kMaxFileBytes = uint64_t{1} << 43;

int Fallocate(int fd, uint64_t offset, uint64_t size_bytes) {
  int result;
  do {
    result = ::fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(size_bytes));
  } while (result != 0 && errno == EINTR);
  return result;
}

}  // namespace

uint64_t SegmentBoundBytes(uint64_t segment_bytes, uint32_t segment) {
  return segment_bytes << std::min(segment / kSegmentsPerDoubling, kMaxDoublings);
}

SegmentFiles::SegmentFiles(const std::vector<StoreFolder>* folders, Options options, IoEngine* io)
    : folders_(folders), options_(std::move(options)), io_(io), devices_(folders->size()) {}

SegmentFiles::~SegmentFiles() {
  for (Device& device : devices_) {
    for (auto& [number, segment] : device.segments) {
      // The engine only forgets a number here; the file is closed in any case.
      (void)io_->RemoveFile(segment.id);
    }
  }
}

absl::StatusOr<SegmentFiles::Segment*> SegmentFiles::OpenFile(uint16_t device, uint32_t number,
                                                              int flags) {
  const std::string path = (*folders_)[device].SegmentPath(number);
  auto file = OpenDirect(path, O_RDWR | flags, options_.announce);
  if (absl::IsFailedPrecondition(file.status())) {  // missing rights, in a store's words
    return absl::UnavailableError(
        absl::StrCat(file.status().message(), "; a store needs files that this user can write"));
  }
  if (!file.ok()) return file.status();
  struct stat info;
  if (::fstat(file->fd(), &info) != 0)
    return base::ErrnoToStatus(errno, absl::StrCat("stat ", path));
  if (!S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is not a file; a segment must be one"));
  }
  const absl::StatusOr<FileId> id = io_->AddFile(file->fd(), path, device);
  if (!id.ok()) {
    if (flags & O_CREAT) ::unlink(path.c_str());
    return id.status();
  }
  Segment& segment = devices_[device].segments[number];
  segment.file = *std::move(file);
  segment.id = *id;
  segment.size_bytes =
      std::min(static_cast<uint64_t>(info.st_size), kMaxFileBytes) / kIoAlignment * kIoAlignment;
  return &segment;
}

void SegmentFiles::CloseFile(uint16_t device, uint32_t number) {
  (void)io_->RemoveFile(Find(device, number).id);
  devices_[device].segments.erase(number);
}

absl::StatusOr<std::vector<SegmentFiles::Region>> SegmentFiles::OpenExisting(uint16_t device) {
  SPILLWAY_ASSIGN_OR_RETURN(const std::vector<uint32_t> numbers,
                            (*folders_)[device].ListSegments());
  std::vector<Region> regions;
  for (uint32_t number : numbers) {
    SPILLWAY_ASSIGN_OR_RETURN(Segment * segment, OpenFile(device, number, 0));
    regions.push_back({number, 0, segment->size_bytes});
  }
  return regions;
}

absl::Status SegmentFiles::Extend(Segment* segment, uint64_t size_bytes) {
  const int fd = segment->file.fd();
  if (Fallocate(fd, segment->size_bytes, size_bytes) == 0) {
    segment->size_bytes += size_bytes;
    return absl::OkStatus();
  }
  const int error = errno;
  const uint64_t new_size_bytes = segment->size_bytes + size_bytes;
  if (error == EOPNOTSUPP || error == ENOSYS || error == EINVAL) {
    // No fallocate here: a sparse file. Its writes may meet a full file system themselves.
    if (::ftruncate(fd, static_cast<off_t>(new_size_bytes)) != 0) {
      return base::ErrnoToStatus(errno, absl::StrCat("extend ", segment->file.path()));
    }
    segment->size_bytes = new_size_bytes;
    return absl::OkStatus();
  }
  // A failed fallocate may have added part of it.
  if (::ftruncate(fd, static_cast<off_t>(segment->size_bytes)) != 0) {
    return base::ErrnoToStatus(errno, absl::StrCat("shorten ", segment->file.path()));
  }
  return base::ErrnoToStatus(
      error, absl::StrCat("extend ", segment->file.path(), " from ", segment->size_bytes, " to ",
                          new_size_bytes, " bytes"));
}

absl::StatusOr<SegmentFiles::Region> SegmentFiles::GrowNewest(uint16_t device,
                                                              uint64_t needed_bytes,
                                                              uint64_t wanted_bytes) {
  auto& [number, segment] = *devices_[device].segments.rbegin();
  const uint64_t offset = segment.size_bytes;
  const uint64_t room_bytes = SegmentBoundBytes(options_.segment_bytes, number) - offset;
  uint64_t size_bytes = std::min(std::max(wanted_bytes, needed_bytes), room_bytes);
  absl::Status status = Extend(&segment, size_bytes);
  if (absl::IsResourceExhausted(status) && size_bytes > needed_bytes) {
    size_bytes = needed_bytes;
    status = Extend(&segment, size_bytes);
  }
  if (!status.ok()) return status;
  return Region{number, offset, size_bytes};
}

absl::StatusOr<SegmentFiles::Region> SegmentFiles::Grow(uint16_t device, uint64_t needed_bytes,
                                                        uint64_t wanted_bytes) {
  auto& segments = devices_[device].segments;
  const uint32_t next = segments.empty() ? 0 : segments.rbegin()->first + 1;
  if (!segments.empty()) {
    const uint64_t bound_bytes = SegmentBoundBytes(options_.segment_bytes, next - 1);
    if (segments.rbegin()->second.size_bytes + needed_bytes <= bound_bytes) {
      return GrowNewest(device, needed_bytes, wanted_bytes);
    }
  }
  if (next >= StoreFolder::kMaxSegments) {
    return absl::ResourceExhaustedError(
        absl::StrCat((*folders_)[device].path(), " has ", next,
                     " segment files, as many as a store folder can have"));
  }
  SPILLWAY_RETURN_IF_ERROR(OpenFile(device, next, O_CREAT | O_EXCL).status());
  devices_[device].has_new_files = true;
  absl::StatusOr<Region> region = GrowNewest(device, needed_bytes, wanted_bytes);
  if (!region.ok()) {
    CloseFile(device, next);
    ::unlink((*folders_)[device].SegmentPath(next).c_str());
  }
  return region;
}

absl::Status SegmentFiles::Sync() {
  if (!sync_error_.ok()) return sync_error_;
  for (const auto& [device, number] : touched_) {
    const DirectFile& file = Find(device, number).file;
    if (::fdatasync(file.fd()) == 0) continue;
    const absl::Status status = base::ErrnoToStatus(errno, absl::StrCat("sync ", file.path()));
    sync_error_ = {status.code(),
                   absl::StrCat(status.message(),
                                "; what was written since the last commit may be lost, so nothing "
                                "more can be committed: open the store again to go on from there")};
    return sync_error_;
  }
  touched_.clear();
  for (size_t i = 0; i < devices_.size(); ++i) {
    if (!devices_[i].has_new_files) continue;
    SPILLWAY_RETURN_IF_ERROR((*folders_)[i].Sync());
    devices_[i].has_new_files = false;
  }
  return absl::OkStatus();
}

}  // namespace spillway::io
