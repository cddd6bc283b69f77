// SPDX-License-Identifier: Apache-2.0

#include "io/store/store_space.h"

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "src/base/bytes.h"
#include "src/base/errno_status.h"
#include "src/base/status_macros.h"

namespace spillway::io {
namespace {

// Files grow by this much at a time. A fallocate costs about 2 ms on ext4 and a page's write 0.5 ms
// a MiB.
constexpr uint64_t kGrowBytes = uint64_t{64} << 20;
// What a commit may add to the catalog and its log: fixed, and for each page.
constexpr uint64_t kCatalogReserveBytes = uint64_t{1} << 20;
constexpr uint64_t kCatalogReservePerPageBytes = 256;

uint64_t RoundUpToUnit(uint64_t bytes) {
  return (bytes + kIoAlignment - 1) / kIoAlignment * kIoAlignment;
}

}  // namespace

uint64_t CatalogReserveBytes(uint64_t extent_bytes, uint64_t page_bytes) {
  return RoundUpToUnit(kCatalogReserveBytes +
                       extent_bytes / page_bytes * kCatalogReservePerPageBytes);
}

StoreSpace::StoreSpace(const StoreOptions& options, uint64_t page_bytes,
                       const std::vector<StoreFolder>* folders, IoEngine* io)
    : options_(options),
      page_bytes_(page_bytes),
      folders_(folders),
      files_(folders, {std::max(options.segment_bytes, page_bytes), options.announce}, io),
      extents_(static_cast<uint16_t>(folders->size()), options.max_bytes) {}

absl::StatusOr<std::unique_ptr<StoreSpace>> StoreSpace::Open(
    const StoreOptions& options, uint64_t page_bytes, const std::vector<StoreFolder>* folders,
    IoEngine* io) {
  std::unique_ptr<StoreSpace> space(new StoreSpace(options, page_bytes, folders, io));
  SPILLWAY_RETURN_IF_ERROR(space->OpenFiles());
  return space;
}

absl::Status StoreSpace::OpenFiles() {
  for (uint16_t device = 0; device < extents_.num_devices(); ++device) {
    struct stat info;
    if (::stat((*folders_)[device].path().c_str(), &info) != 0) {
      return base::ErrnoToStatus(errno, absl::StrCat("stat ", (*folders_)[device].path()));
    }
    file_systems_.push_back(info.st_dev);
    SPILLWAY_ASSIGN_OR_RETURN(const auto regions, files_.OpenExisting(device));
    for (const SegmentFiles::Region& region : regions) {
      extents_.AddWritten(device, region.segment, region.offset, region.size_bytes);
    }
  }
  return absl::OkStatus();
}

// What the folder's file system can give to segment files, the catalog's growth set aside.
absl::StatusOr<uint64_t> StoreSpace::FreeBytes(uint16_t device) const {
  struct statvfs info;
  if (::statvfs((*folders_)[device].path().c_str(), &info) != 0) {
    return base::ErrnoToStatus(
        errno, absl::StrCat("ask for the free space of ", (*folders_)[device].path()));
  }
  const uint64_t free_bytes = uint64_t{info.f_bavail} * info.f_frsize / kIoAlignment * kIoAlignment;
  if (file_systems_[device] != file_systems_[0]) return free_bytes;
  // Pages that exist, and those that the free space could hold.
  const uint64_t reserve_bytes =
      CatalogReserveBytes(extents_.space_bytes() + free_bytes, page_bytes_);
  return free_bytes - std::min(free_bytes, reserve_bytes);
}

absl::Status StoreSpace::Grow(uint16_t device, uint64_t needed_bytes) {
  SPILLWAY_ASSIGN_OR_RETURN(const uint64_t free_bytes, FreeBytes(device));
  if (free_bytes < needed_bytes) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the file system of ", (*folders_)[device].path(), " has ", base::FormatBytes(free_bytes),
        " free for it: ", std::strerror(ENOSPC), " (ENOSPC)"));
  }
  const uint64_t space_bytes = extents_.space_bytes();
  const uint64_t budget_bytes = options_.max_bytes - std::min(options_.max_bytes, space_bytes);
  const uint64_t wanted_bytes =
      std::min({kGrowBytes, free_bytes, budget_bytes}) / kIoAlignment * kIoAlignment;
  SPILLWAY_ASSIGN_OR_RETURN(const SegmentFiles::Region region,
                            files_.Grow(device, needed_bytes, wanted_bytes));
  extents_.AddFresh(device, region.segment, region.offset, region.size_bytes);
  return absl::OkStatus();
}

absl::StatusOr<Extent> StoreSpace::Allocate(uint32_t size_bytes) {
  const uint64_t needed_bytes = RoundUpToUnit(size_bytes);
  if (size_bytes == 0 || needed_bytes > std::max(options_.segment_bytes, page_bytes_)) {
    return absl::InvalidArgumentError(
        absl::StrCat("room for ", size_bytes, " bytes was asked for; an extent has 1 to ",
                     std::max(options_.segment_bytes, page_bytes_), " bytes"));
  }
  if (!extents_.WithinBudget(size_bytes)) return OverBudget(size_bytes);
  if (const auto extent = extents_.TakeWritten(size_bytes)) return *extent;
  const uint16_t turn = extents_.turn();
  absl::Status first_error;
  for (uint16_t i = 0; i < extents_.num_devices(); ++i) {
    const uint16_t device = static_cast<uint16_t>((turn + i) % extents_.num_devices());
    if (const auto extent = extents_.TakeFresh(device, size_bytes)) return *extent;
    const absl::Status status = Grow(device, needed_bytes);
    if (status.ok()) return *extents_.TakeFresh(device, size_bytes);
    first_error.Update(status);
    if (!absl::IsResourceExhausted(status))
      break;  // a folder that fails otherwise is not passed over in silence
  }
  // Growing another file turns the rest of the one before into an ordinary run.
  if (const auto extent = extents_.TakeWritten(size_bytes)) return *extent;
  return NoRoom(first_error, size_bytes);
}

absl::Status StoreSpace::OverBudget(uint64_t size_bytes) const {
  return NoRoom(
      absl::ResourceExhaustedError(absl::StrCat("at most ", options_.max_bytes, " (",
                                                base::FormatBytes(options_.max_bytes), ") may be")),
      size_bytes);
}

absl::Status StoreSpace::NoRoom(const absl::Status& cause, uint64_t size_bytes) const {
  const std::string_view advice =
      absl::IsResourceExhausted(cause)
          ? "; allow the store more bytes, free some on its disks, or commit, which "
            "frees what only the last commit needs"
          : "";
  return {cause.code(),
          absl::StrCat("the store in ", absl::StrJoin(options_.folders, ","), " has no room for ",
                       size_bytes, " bytes: ", extents_.used_bytes(), " bytes (",
                       base::FormatBytes(extents_.used_bytes()), ") are in use; ", cause.message(),
                       absl::string_view(advice.data(), advice.size()))};
}

uint64_t StoreSpace::available_bytes() const {
  uint64_t bytes = extents_.space_bytes() - extents_.used_bytes();
  for (uint16_t device = 0; device < extents_.num_devices(); ++device) {
    const auto begin = file_systems_.begin();
    if (std::find(begin, begin + device, file_systems_[device]) != begin + device)
      continue;  // counted already
    if (const auto free_bytes = FreeBytes(device); free_bytes.ok()) bytes += *free_bytes;
  }
  const uint64_t used_bytes = extents_.used_bytes();
  return std::min(bytes, options_.max_bytes - std::min(options_.max_bytes, used_bytes));
}

}  // namespace spillway::io
