// SPDX-License-Identifier: Apache-2.0

#include "io/store/segment_files.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "src/base/bytes.h"
#include "src/base/errno_status.h"
#include "src/base/status_macros.h"

namespace spillway::io {
namespace {

constexpr uint32_t kSegmentsPerDoubling = 64;
// From 1 GiB to 1 TiB: every file system in use supports such a file.
constexpr uint32_t kMaxDoublings = 10;

// A larger file counts as this long, so that unit numbers fit in 32 bits. Only another program can
// have made a file that large.
constexpr uint64_t kMaxFileBytes = uint64_t{1} << 43;

// Bound on open files. The ring does not register more either.
constexpr uint64_t kMaxOpenFiles = 256;

// Memory of this size is cleared in a millisecond or less, so signals do not keep it from ending.
constexpr uint64_t kLeastPieceBytes = uint64_t{1} << 20;

uint64_t MaxDescriptors() {
  rlimit limit;
  return ::getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : kMaxOpenFiles;
}

// After a signal, allocates in pieces of half the size. On tmpfs some kernels end the call at a
// signal and give all of its memory back (6.18 does not), and clearing 1 GiB takes longer than
// signals may be apart. A failure may leave a part allocated.
int Fallocate(int fd, uint64_t offset, uint64_t size_bytes) {
  uint64_t piece = size_bytes;
  while (size_bytes > 0) {
    const uint64_t now = std::min(piece, size_bytes);
    if (::fallocate(fd, 0, static_cast<off_t>(offset), static_cast<off_t>(now)) == 0) {
      offset += now;
      size_bytes -= now;
    } else if (errno == EINTR) {
      piece = std::max(base::RoundUp(now / 2, kIoAlignment), kLeastPieceBytes);
    } else {
      return -1;
    }
  }
  return 0;
}

// Returns the bytes that the file system has allocated for a file.
absl::StatusOr<uint64_t> StoredBytes(const DirectFile& file) {
  struct stat info;
  if (::fstat(file.fd(), &info) != 0)
    return base::ErrnoToStatus(errno, absl::StrCat("stat ", file.path()));
  return static_cast<uint64_t>(info.st_blocks) * 512;
}

}  // namespace

uint64_t SegmentBoundBytes(uint64_t segment_bytes, uint32_t segment) {
  return segment_bytes << std::min(segment / kSegmentsPerDoubling, kMaxDoublings);
}

SegmentFiles::SegmentFiles(const std::vector<StoreFolder>* folders, Options options, IoEngine* io)
    : folders_(folders),
      options_(std::move(options)),
      io_(io),
      max_open_(std::clamp<uint64_t>(MaxDescriptors() / 2, 1, kMaxOpenFiles)),
      devices_(folders->size()) {}

SegmentFiles::~SegmentFiles() {
  for (Device& device : devices_)
    for (auto& [number, segment] : device.segments) Close(&segment);
}

absl::Status SegmentFiles::Load(const std::vector<CatalogSegment>& known) {
  for (uint16_t device = 0; device < num_devices(); ++device) {
    SPILLWAY_ASSIGN_OR_RETURN(const std::vector<uint32_t> numbers,
                              (*folders_)[device].ListSegments());
    auto& segments = devices_[device].segments;
    for (uint32_t number : numbers) segments.emplace_hint(segments.end(), number, Segment());
  }
  for (const CatalogSegment& entry : known) {
    auto& segments = devices_[entry.device].segments;
    auto found = segments.find(entry.segment);
    if (found == segments.end() && options_.on_lost_file) {
      options_.on_lost_file(absl::StrCat(Path(entry.device, entry.segment),
                                         " is missing: what lies in it is lost. "
                                         "Once nothing needs it, spillway trim forgets it"));
      found = segments.emplace(entry.segment, Segment()).first;
      lost_.insert({entry.device, entry.segment});
    }
    if (found == segments.end()) {
      return absl::DataLossError(absl::StrCat(
          Path(entry.device, entry.segment), " is missing, but the catalog knows ",
          entry.size_bytes,
          " bytes of it; restore the store from a copy, or go back to a snapshot that "
          "does not need it (spillway fsck names what needs it; snapshot restore, then "
          "snapshot drop of the others that need it, then trim), or remove the store "
          "and start over"));
    }
    Segment& segment = found->second;
    segment.size_bytes = segment.catalog_size_bytes = entry.size_bytes;
    segment.written_bytes = segment.catalog_written_bytes = entry.written_bytes;
    SetFileBytes(&segment, entry.size_bytes);
  }
  for (uint16_t device = 0; device < num_devices(); ++device) {
    auto& segments = devices_[device].segments;
    for (auto& [number, segment] : segments) {
      if (segment.size_bytes > 0 && number != segments.rbegin()->first) continue;
      if (IsLost(device, number)) continue;
      SPILLWAY_RETURN_IF_ERROR(Measure(device, number, &segment));
    }
  }
  return absl::OkStatus();
}

absl::Status SegmentFiles::Measure(uint16_t device, uint32_t number, Segment* segment) {
  const std::string path = Path(device, number);
  struct stat info;
  if (::stat(path.c_str(), &info) != 0)
    return base::ErrnoToStatus(errno, absl::StrCat("stat ", path));
  if (!S_ISREG(info.st_mode)) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, " is not a file; a segment must be one"));
  }
  const uint64_t bytes =
      std::min(static_cast<uint64_t>(info.st_size), kMaxFileBytes) / kIoAlignment * kIoAlignment;
  if (bytes < segment->size_bytes) {
    return absl::DataLossError(
        absl::StrCat(path, " is too short: it has ", bytes, " bytes, but the catalog knows ",
                     segment->size_bytes,
                     " bytes of it; restore the store from a copy, or remove it and start over"));
  }
  SetFileBytes(segment, bytes);
  segment->is_measured = true;
  return absl::OkStatus();
}

void SegmentFiles::SetFileBytes(Segment* segment, uint64_t bytes) {
  total_bytes_ = total_bytes_ - segment->file_bytes + bytes;
  segment->file_bytes = bytes;
}

// --- Open files ---

absl::StatusOr<SegmentFiles::Segment*> SegmentFiles::Open(uint16_t device, uint32_t number,
                                                          int flags) {
  const bool create = (flags & O_CREAT) != 0;
  auto& segments = devices_[device].segments;
  const auto found = segments.find(number);
  if (found != segments.end() && found->second.open) {
    open_.splice(open_.begin(), open_, found->second.last_used);
    return &found->second;
  }
  const std::string path = Path(device, number);
  if ((found == segments.end() && !create) || IsLost(device, number)) {
    return absl::DataLossError(absl::StrCat("the store has no file ", path));
  }
  const StoreFolder& folder = (*folders_)[device];
  SPILLWAY_RETURN_IF_ERROR(folder.CheckIsThere());
  if (found != segments.end() && !found->second.is_measured)
    SPILLWAY_RETURN_IF_ERROR(Measure(device, number, &found->second));
  SPILLWAY_ASSIGN_OR_RETURN(DirectFile file, OpenFor(path, flags));
  // The folder may have been replaced since the first check, and the file be another store's.
  SPILLWAY_RETURN_IF_ERROR(folder.CheckIsThere());
  const absl::StatusOr<FileId> id = io_->AddFile(file.fd(), path, device);
  if (!id.ok()) {
    if (create) (void)folder.RemoveFile(path);
    return id.status();
  }
  Segment& segment = segments[number];
  if (create) segment.is_measured = true;
  segment.open = std::make_shared<OpenFile>(std::move(file), *id);
  segment.last_used = open_.insert(open_.begin(), {device, number});
  return &segment;
}

absl::StatusOr<DirectFile> SegmentFiles::OpenFor(const std::string& path, int flags) {
  // If all are in use, one more is opened than the bound allows, so that a file can still be made
  // or synced.
  while (open_.size() >= max_open_ && CloseIdle()) {
  }
  while (true) {
    auto file = OpenDirect(path, O_RDWR | O_NOFOLLOW | flags, options_.announce);
    if (file.ok()) return file;
    if (absl::IsFailedPrecondition(file.status())) {  // missing permissions, reworded for a store
      return absl::UnavailableError(
          absl::StrCat(file.status().message(), "; a store needs files that this user can write"));
    }
    // Other code in the process may have used the descriptors.
    if (!absl::IsResourceExhausted(file.status()) || !CloseIdle()) return file.status();
  }
}

// Closes the least recently used file that has no transfer. Returns false if there is none.
bool SegmentFiles::CloseIdle() {
  for (auto key = open_.rbegin(); key != open_.rend(); ++key) {
    Segment& segment = devices_[key->first].segments.at(key->second);
    if (segment.open.use_count() > 1) continue;
    // The kernel reports a failed write-back only to descriptors that are open at that time, so the
    // file is synced before it is closed. SyncFile remembers the error.
    if (!segment.open->file.is_direct()) (void)SyncFile(segment.open->file);
    Close(&segment);
    return true;
  }
  return false;
}

void SegmentFiles::Close(Segment* segment) {
  if (!segment->open) return;
  // The result does not matter: the engine only drops the file's number, and the file is closed in
  // any case.
  (void)io_->RemoveFile(segment->open->id);
  open_.erase(segment->last_used);
  segment->open.reset();
}

// Removes a file. A file that cannot be removed stays listed, so that its number is not given to
// another.
absl::Status SegmentFiles::Remove(uint16_t device, uint32_t number) {
  if (lost_.erase({device, number}) == 0)
    SPILLWAY_RETURN_IF_ERROR((*folders_)[device].RemoveFile(Path(device, number)));
  const auto segment = devices_[device].segments.find(number);
  Close(&segment->second);
  SetFileBytes(&segment->second, 0);
  devices_[device].segments.erase(segment);
  touched_.erase({device, number});
  return absl::OkStatus();
}

absl::StatusOr<FileUse> SegmentFiles::File(uint16_t device, uint32_t number) {
  SPILLWAY_ASSIGN_OR_RETURN(Segment* const segment, Open(device, number, 0));
  FileUse use(segment->open, &segment->open->id);
  if (open_.size() <= max_open_ || CloseIdle()) return use;
  return absl::ResourceExhaustedError(
      absl::StrCat("open ", Path(device, number), ": transfers are under way on ", max_open_,
                   " segment files, as many as a store has open where a process may have ",
                   MaxDescriptors(), " files open; raise that limit ('ulimit -n')"));
}

bool SegmentFiles::Holds(const Extent& extent) const {
  if (extent.device >= devices_.size()) return false;
  const auto& segments = devices_[extent.device].segments;
  const auto segment = segments.find(extent.segment);
  return segment != segments.end() && extent.size_bytes <= segment->second.size_bytes &&
         extent.offset <= segment->second.size_bytes - extent.size_bytes;
}

uint64_t SegmentFiles::written_bytes(uint16_t device, uint32_t segment) const {
  const auto& segments = devices_[device].segments;
  const auto found = segments.find(segment);
  return found == segments.end() ? 0 : found->second.written_bytes;
}

std::optional<SegmentFiles::Region> SegmentFiles::AdoptTail(uint16_t device) {
  for (auto& [number, segment] : devices_[device].segments) {
    if (segment.file_bytes == segment.size_bytes) continue;
    const Region region = {number, segment.size_bytes, segment.file_bytes - segment.size_bytes};
    segment.size_bytes = segment.file_bytes;
    touched_.insert({device, number});  // neither its size nor its name may be durable yet
    if (region.offset == 0) devices_[device].has_new_files = true;
    return region;
  }
  return std::nullopt;
}

void SegmentFiles::HandedOut(const Extent& extent) {
  Segment& segment = devices_[extent.device].segments.at(extent.segment);
  segment.written_bytes = std::max(segment.written_bytes, extent.offset + extent.size_bytes);
}

absl::Status SegmentFiles::AddTo(CatalogChange* change) const {
  for (uint16_t device = 0; device < num_devices(); ++device) {
    for (const auto& [number, segment] : devices_[device].segments) {
      if (segment.is_known()) continue;
      const uint64_t before = segment.catalog_size_bytes;
      const uint64_t now = segment.size_bytes;
      if (now > before) change->AddSpace(device, number, before, now - before);
      if (now < before) change->RemoveSpace(device, number, now, before - now);
      SPILLWAY_RETURN_IF_ERROR(change->PutSegment({device, number, now, segment.written_bytes}));
    }
  }
  return absl::OkStatus();
}

void SegmentFiles::Flushed() {
  for (Device& device : devices_) {
    for (auto& [number, segment] : device.segments) {
      segment.catalog_size_bytes = segment.size_bytes;
      segment.catalog_written_bytes = segment.written_bytes;
    }
  }
}

absl::Status SegmentFiles::Extend(Segment* segment, uint64_t size_bytes) {
  const DirectFile& file = segment->open->file;
  const int fd = file.fd();
  if (!options_.sparse && Fallocate(fd, segment->file_bytes, size_bytes) == 0) {
    SetFileBytes(segment, segment->file_bytes + size_bytes);
    return absl::OkStatus();
  }
  const int error = errno;
  const uint64_t new_size_bytes = segment->file_bytes + size_bytes;
  if (options_.sparse || error == EOPNOTSUPP || error == ENOSYS || error == EINVAL) {
    // The file system has no fallocate, so the file becomes sparse, or it is meant to be. A write
    // to it may find the file system full.
    if (::ftruncate(fd, static_cast<off_t>(new_size_bytes)) != 0) {
      return base::ErrnoToStatus(errno, absl::StrCat("extend ", file.path()));
    }
    SetFileBytes(segment, new_size_bytes);
    return absl::OkStatus();
  }
  // A failed fallocate may have added part of the space.
  if (::ftruncate(fd, static_cast<off_t>(segment->file_bytes)) != 0) {
    return base::ErrnoToStatus(errno, absl::StrCat("shorten ", file.path()));
  }
  return base::ErrnoToStatus(
      error, absl::StrCat("extend ", file.path(), " from ", segment->file_bytes, " to ",
                          new_size_bytes, " bytes"));
}

absl::StatusOr<SegmentFiles::Region> SegmentFiles::GrowNewest(uint16_t device,
                                                              uint64_t needed_bytes,
                                                              uint64_t wanted_bytes) {
  const uint32_t number = devices_[device].segments.rbegin()->first;
  SPILLWAY_ASSIGN_OR_RETURN(Segment* const segment, Open(device, number, 0));
  const uint64_t offset = segment->size_bytes;
  const uint64_t room_bytes = SegmentBoundBytes(options_.segment_bytes, number) - offset;
  uint64_t size_bytes = std::min(std::max(wanted_bytes, needed_bytes), room_bytes);
  absl::Status status = Extend(segment, size_bytes);
  if (absl::IsResourceExhausted(status) && size_bytes > needed_bytes) {
    size_bytes = needed_bytes;
    status = Extend(segment, size_bytes);
  }
  if (!status.ok()) return status;
  segment->size_bytes = segment->file_bytes;
  touched_.insert({device, number});  // so that its size is durable before the catalog names it
  return Region{number, offset, size_bytes};
}

absl::StatusOr<SegmentFiles::Region> SegmentFiles::Grow(uint16_t device, uint64_t needed_bytes,
                                                        uint64_t wanted_bytes) {
  auto& segments = devices_[device].segments;
  const uint32_t next = segments.empty() ? 0 : segments.rbegin()->first + 1;
  if (!segments.empty() && !IsLost(device, next - 1)) {
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
  SPILLWAY_RETURN_IF_ERROR(Open(device, next, O_CREAT | O_EXCL).status());
  devices_[device].has_new_files = true;
  absl::StatusOr<Region> region = GrowNewest(device, needed_bytes, wanted_bytes);
  // The first error is the one to report.
  if (!region.ok()) (void)Remove(device, next);
  return region;
}

absl::Status SegmentFiles::SyncFile(const DirectFile& file) {
  if (::fdatasync(file.fd()) == 0) return absl::OkStatus();
  return SyncFailed(base::ErrnoToStatus(errno, absl::StrCat("sync ", file.path())));
}

// Makes the failure final, and returns it with what to do.
absl::Status SegmentFiles::SyncFailed(const absl::Status& status) {
  sync_error_ = {status.code(),
                 absl::StrCat(status.message(),
                              "; what was written since the last commit may be lost, so nothing "
                              "more can be committed: open the store again to go on from there")};
  return sync_error_;
}

absl::Status SegmentFiles::Sync() {
  if (!sync_error_.ok()) return sync_error_;
  for (const auto& [device, number] : touched_) {
    // Opens the file if it is not open: it may have been closed for others, or be a tail that was
    // left by a crash, adopted, and not written yet.
    absl::StatusOr<Segment*> segment = Open(device, number, 0);
    if (!segment.ok()) return segment.status();
    SPILLWAY_RETURN_IF_ERROR(SyncFile((*segment)->open->file));
  }
  touched_.clear();
  for (size_t i = 0; i < devices_.size(); ++i) {
    if (!devices_[i].has_new_files) continue;
    if (absl::Status synced = (*folders_)[i].Sync(); !synced.ok()) return SyncFailed(synced);
    devices_[i].has_new_files = false;
  }
  // A file that was closed to make room for another may have failed to sync meanwhile.
  return sync_error_;
}

// --- Giving back ---

std::vector<SegmentFiles::Region> SegmentFiles::Sizes(uint16_t device) const {
  std::vector<Region> regions;
  for (const auto& [number, segment] : devices_[device].segments)
    regions.push_back({number, 0, segment.size_bytes});
  return regions;
}

void SegmentFiles::Cut(uint16_t device, uint32_t number, uint64_t size_bytes) {
  Segment& segment = devices_[device].segments.at(number);
  segment.size_bytes = size_bytes;
  segment.written_bytes = std::min(segment.written_bytes, size_bytes);
}

absl::StatusOr<uint64_t> SegmentFiles::CutTails() {
  uint64_t bytes = 0;
  for (uint16_t device = 0; device < num_devices(); ++device) {
    std::vector<uint32_t> empty;
    for (auto& [number, segment] : devices_[device].segments) {
      const bool is_lost = IsLost(device, number);
      if (!segment.is_measured && !is_lost)
        SPILLWAY_RETURN_IF_ERROR(Measure(device, number, &segment));
      if (segment.size_bytes == 0) empty.push_back(number);
      if (segment.file_bytes == segment.size_bytes || is_lost) continue;
      SPILLWAY_RETURN_IF_ERROR(Open(device, number, 0).status());
      const DirectFile& file = segment.open->file;
      SPILLWAY_ASSIGN_OR_RETURN(const uint64_t before, StoredBytes(file));
      if (::ftruncate(file.fd(), static_cast<off_t>(segment.size_bytes)) != 0)
        return base::ErrnoToStatus(errno, absl::StrCat("shorten ", file.path()));
      SetFileBytes(&segment, segment.size_bytes);
      SPILLWAY_ASSIGN_OR_RETURN(const uint64_t after, StoredBytes(file));
      bytes += before - std::min(before, after);
    }
    for (uint32_t number : empty) SPILLWAY_RETURN_IF_ERROR(Remove(device, number));
  }
  return bytes;
}

absl::StatusOr<uint64_t> SegmentFiles::Punch(uint16_t device, const Region& hole) {
  SPILLWAY_ASSIGN_OR_RETURN(Segment* const segment, Open(device, hole.segment, 0));
  const DirectFile& file = segment->open->file;
  SPILLWAY_ASSIGN_OR_RETURN(const uint64_t before, StoredBytes(file));
  int result;
  do {
    result = ::fallocate(file.fd(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                         static_cast<off_t>(hole.offset), static_cast<off_t>(hole.size_bytes));
  } while (result != 0 && errno == EINTR);
  if (result != 0 && (errno == EOPNOTSUPP || errno == ENOSYS)) return uint64_t{0};
  if (result != 0) {
    return base::ErrnoToStatus(errno, absl::StrCat("punch a hole into ", file.path(), " at offset ",
                                                   hole.offset, ", ", hole.size_bytes, " bytes"));
  }
  SPILLWAY_ASSIGN_OR_RETURN(const uint64_t after, StoredBytes(file));
  return before - std::min(before, after);
}

}  // namespace spillway::io
