// SPDX-License-Identifier: Apache-2.0

#include "io/store/store_space.h"

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "src/base/bytes.h"
#include "src/base/errno_status.h"
#include "src/base/status_macros.h"

namespace spillway::io {
namespace {

// A file grows by at most 1/kGrowShare of the free space: what a file on a small disk gets in
// advance is missing elsewhere.
constexpr uint64_t kGrowShare = 8;
// What the catalog and its log may take: a fixed part, and a part for each page. Half of it is for
// the catalog, half for the log.
constexpr uint64_t kCatalogReserveBytes = uint64_t{1} << 20;
constexpr uint64_t kCatalogReservePerPageBytes = 256;
// Rows of free_space that are loaded at once: 4 GiB of a file, or more if few of its chunks have
// free bytes.
constexpr uint64_t kChunksAtATime = 64;

// What the file system of a sparse store can give: more than any layout has. 256 folders' sum fits
// in 64 bits.
constexpr uint64_t kSparseFreeBytes = uint64_t{1} << 55;

constexpr uint64_t kMiB = uint64_t{1} << 20;

uint64_t RoundUpToUnit(uint64_t bytes) {
  return (bytes + kIoAlignment - 1) / kIoAlignment * kIoAlignment;
}

}  // namespace

uint64_t GrowBytes(uint64_t folder_bytes) {
  return std::max(std::clamp(folder_bytes, 4 * kMiB, 64 * kMiB),
                  std::min(folder_bytes / 4, 1024 * kMiB));
}

uint64_t CatalogReserveBytes(uint64_t extent_bytes, uint64_t page_bytes) {
  return RoundUpToUnit(kCatalogReserveBytes +
                       extent_bytes / page_bytes * kCatalogReservePerPageBytes);
}

StoreSpace::StoreSpace(const StoreOptions& options, uint64_t used_bytes,
                       const std::vector<StoreFolder>* folders, Catalog* catalog, IoEngine* io)
    : options_(options),
      page_bytes_(catalog->meta().page_bytes),
      folders_(folders),
      catalog_(catalog),
      files_(folders,
             {std::max(options.segment_bytes, page_bytes_), options.sparse, options.announce,
              options.on_lost_file},
             io),
      extents_(static_cast<uint16_t>(folders->size()), options.max_bytes, used_bytes),
      loaded_(folders->size()),
      rotation_(static_cast<uint16_t>(folders->size())) {}

absl::StatusOr<std::unique_ptr<StoreSpace>> StoreSpace::Open(
    const StoreOptions& options, uint64_t used_bytes, const std::vector<StoreFolder>* folders,
    Catalog* catalog, IoEngine* io) {
  std::unique_ptr<StoreSpace> space(new StoreSpace(options, used_bytes, folders, catalog, io));
  SPILLWAY_RETURN_IF_ERROR(space->Load());
  return space;
}

absl::Status StoreSpace::Load() {
  for (const StoreFolder& folder : *folders_) {
    struct stat info;
    if (::stat(folder.path().c_str(), &info) != 0)
      return base::ErrnoToStatus(errno, absl::StrCat("stat ", folder.path()));
    file_systems_.push_back(info.st_dev);
  }
  SPILLWAY_ASSIGN_OR_RETURN(const std::vector<CatalogSegment> segments, catalog_->ReadSegments());
  SPILLWAY_RETURN_IF_ERROR(files_.Load(segments));
  uint64_t known_bytes = 0;
  for (const CatalogSegment& segment : segments) known_bytes += segment.size_bytes;
  if (extents_.used_bytes() > known_bytes)
    return catalog_->Damaged("more bytes are in use than its segments have");
  return LoadProfiles();
}

// Calibrations only make a store faster, so damage to them does not keep it from opening.
absl::Status StoreSpace::LoadProfiles() {
  auto profiles = catalog_->ReadProfiles();
  if (absl::IsDataLoss(profiles.status())) {
    if (options_.announce) {
      options_.announce(absl::StrCat("the calibration in ", catalog_->path(),
                                     " is damaged, so the store counts as not calibrated; "
                                     "calibrate it again, with Calibration::kNow"));
    }
    profiles = std::vector<std::optional<DeviceProfile>>(folders_->size());
  }
  SPILLWAY_ASSIGN_OR_RETURN(profiles_, std::move(profiles));
  rotation_.SetProfiles(profiles_);
  return absl::OkStatus();
}

absl::Status StoreSpace::SetProfile(uint16_t device, const DeviceProfile& profile) {
  SPILLWAY_RETURN_IF_ERROR(catalog_->WriteProfile(device, profile));
  profiles_[device] = profile;
  rotation_.SetProfiles(profiles_);
  return absl::OkStatus();
}

// --- Free space ---

void StoreSpace::AddFree(uint16_t device, uint32_t segment, uint64_t offset, uint64_t size_bytes) {
  const uint64_t written_end =
      std::clamp(files_.written_bytes(device, segment), offset, offset + size_bytes);
  extents_.AddWritten(device, segment, offset, written_end - offset);
  if (const uint64_t fresh_bytes = offset + size_bytes - written_end; fresh_bytes > 0)
    extents_.AddFresh(device, segment, written_end, fresh_bytes);
}

// Loads more of a device's free space. Returns false if there is no more. Every extent that was
// allocated comes from a loaded chunk, so the chunks that are not loaded yet are as the catalog has
// them.
absl::StatusOr<bool> StoreSpace::LoadMore(uint16_t device) {
  Loaded& loaded = loaded_[device];
  if (loaded.all) return false;
  SPILLWAY_ASSIGN_OR_RETURN(const std::vector<FreeChunk> chunks,
                            catalog_->ReadFreeChunks(device, loaded.next, kChunksAtATime));
  for (const FreeChunk& chunk : chunks) {
    for (const UnitRun& run : chunk.runs) {
      if (files_.IsLost(device, chunk.id.segment)) break;
      const uint64_t offset = chunk.id.chunk * kChunkBytes + run.first * kIoAlignment;
      const Extent extent = {device, chunk.id.segment, offset, run.count * uint32_t{kIoAlignment}};
      if (!files_.Holds(extent)) {
        return catalog_->Damaged(absl::StrCat("free_space has bytes beyond the end of ",
                                              files_.Path(device, chunk.id.segment)));
      }
      if (extents_.HasFree(device, chunk.id.segment, offset, extent.size_bytes)) {
        return catalog_->Damaged(
            absl::StrCat("free_space has bytes twice of ", files_.Path(device, chunk.id.segment)));
      }
      AddFree(device, chunk.id.segment, offset, extent.size_bytes);
    }
    loaded.next = {chunk.id.segment, chunk.id.chunk + 1};
  }
  loaded.all = chunks.size() < kChunksAtATime;
  return true;
}

void StoreSpace::Unnamed(const Extent& extent) {
  extents_.Unuse(extent.size_bytes);
  // Bytes that were cut off were free. Only an inconsistent catalog names them.
  if (!files_.Holds(extent) || files_.IsLost(extent.device, extent.segment)) return;
  const Loaded& loaded = loaded_[extent.device];
  const uint64_t end = extent.offset + extent.size_bytes;
  for (uint64_t offset = extent.offset; offset < end;) {
    const uint64_t chunk = offset / kChunkBytes;
    const uint64_t piece_end = std::min(end, (chunk + 1) * kChunkBytes);
    // If the chunk is not loaded yet, the bytes come with it later. If any of them are free
    // already, the catalog is inconsistent, and the others stay out of use.
    const bool is_loaded =
        loaded.all || ChunkId{extent.segment, static_cast<uint32_t>(chunk)} < loaded.next;
    if (is_loaded && !extents_.HasFree(extent.device, extent.segment, offset, piece_end - offset))
      extents_.AddWritten(extent.device, extent.segment, offset, piece_end - offset);
    offset = piece_end;
  }
}

absl::StatusOr<std::optional<Extent>> StoreSpace::TakeExisting(uint16_t device,
                                                               uint32_t size_bytes) {
  while (true) {
    if (const auto extent = extents_.TakeWritten(device, size_bytes)) return extent;
    SPILLWAY_ASSIGN_OR_RETURN(const bool loaded, LoadMore(device));
    if (!loaded) break;
  }
  while (true) {
    if (const auto extent = extents_.TakeFresh(device, size_bytes)) return extent;
    const auto tail = files_.AdoptTail(device);
    if (!tail) break;
    extents_.AddFresh(device, tail->segment, tail->offset, tail->size_bytes);
  }
  // Adding a tail turned the fresh space before it into an ordinary run.
  return extents_.TakeWritten(device, size_bytes);
}

// Returns the bytes by which the catalog and its log may still grow, beside `extent_bytes` of
// extents. What the two have already is not reserved again, but of the catalog's half at most three
// quarters count as taken: an old catalog that snapshots have made larger than its half still
// grows.
uint64_t StoreSpace::CatalogGrowthBytes(uint64_t extent_bytes) const {
  const std::string path = (*folders_)[0].CatalogPath();
  const auto stored_bytes = [&](const char* suffix) -> uint64_t {
    struct stat info;
    return ::stat((path + suffix).c_str(), &info) == 0 ? info.st_blocks * uint64_t{512} : 0;
  };
  const uint64_t half_bytes = CatalogReserveBytes(extent_bytes, page_bytes_) / 2;
  const uint64_t catalog_bytes = std::min(stored_bytes(""), half_bytes * 3 / 4);
  const uint64_t log_bytes = std::min(stored_bytes("-wal") + stored_bytes("-shm"), half_bytes);
  return RoundUpToUnit(2 * half_bytes - catalog_bytes - log_bytes);
}

// Returns the bytes that the folder's file system can give to segment files, less the reserve for
// the catalog's growth. The files of a sparse store take none of them.
absl::StatusOr<uint64_t> StoreSpace::FreeBytes(uint16_t device) const {
  if (options_.sparse) return kSparseFreeBytes;
  struct statvfs info;
  if (::statvfs((*folders_)[device].path().c_str(), &info) != 0) {
    return base::ErrnoToStatus(
        errno, absl::StrCat("ask for the free space of ", (*folders_)[device].path()));
  }
  const uint64_t free_bytes = uint64_t{info.f_bavail} * info.f_frsize / kIoAlignment * kIoAlignment;
  if (file_systems_[device] != file_systems_[0]) return free_bytes;
  // For the pages that exist, and for those that the free space could hold.
  const uint64_t reserve_bytes = CatalogGrowthBytes(files_.total_bytes() + free_bytes);
  return free_bytes - std::min(free_bytes, reserve_bytes);
}

absl::Status StoreSpace::Grow(uint16_t device, uint64_t needed_bytes) {
  SPILLWAY_RETURN_IF_ERROR((*folders_)[device].CheckIsThere());
  SPILLWAY_ASSIGN_OR_RETURN(const uint64_t free_bytes, FreeBytes(device));
  if (free_bytes < needed_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the file system of ", (*folders_)[device].path(), " has ",
                     base::FormatBytes(free_bytes), " free for it, ", needed_bytes - free_bytes,
                     " bytes more are needed: ", std::strerror(ENOSPC), " (ENOSPC)"));
  }
  const uint64_t space_bytes = files_.total_bytes();
  const uint64_t budget_bytes = options_.max_bytes - std::min(options_.max_bytes, space_bytes);
  const uint64_t wanted_bytes =
      std::min({GrowBytes(space_bytes / folders_->size()), free_bytes / kGrowShare, budget_bytes}) /
      kIoAlignment * kIoAlignment;
  SPILLWAY_ASSIGN_OR_RETURN(const SegmentFiles::Region region,
                            files_.Grow(device, needed_bytes, wanted_bytes));
  extents_.AddFresh(device, region.segment, region.offset, region.size_bytes);
  return absl::OkStatus();
}

absl::StatusOr<Extent> StoreSpace::Allocate(uint32_t size_bytes) {
  if (size_bytes == 0 ||
      RoundUpToUnit(size_bytes) > std::max(options_.segment_bytes, page_bytes_)) {
    return absl::InvalidArgumentError(
        absl::StrCat("room for ", size_bytes, " bytes was asked for; an extent has 1 to ",
                     std::max(options_.segment_bytes, page_bytes_), " bytes"));
  }
  if (!extents_.WithinBudget(size_bytes)) return OverBudget(size_bytes);
  SPILLWAY_ASSIGN_OR_RETURN(const Extent extent, Find(size_bytes));
  rotation_.Took(extent.device, extent.size_bytes);
  files_.HandedOut(extent);
  return extent;
}

// The device whose turn it is takes the extent from its free runs, or grows a file within the
// budget. If the budget or its disk is full, the other devices follow. Files grow beyond the budget
// only if no free run on any device is long enough.
absl::StatusOr<Extent> StoreSpace::Find(uint32_t size_bytes) {
  const uint64_t needed_bytes = RoundUpToUnit(size_bytes);
  const uint64_t total_bytes = files_.total_bytes();
  const bool may_grow =
      total_bytes <= options_.max_bytes && needed_bytes <= options_.max_bytes - total_bytes;
  absl::Status first_error;
  const auto grow = [&](uint16_t device) {
    const absl::Status status = Grow(device, needed_bytes);
    first_error.Update(status);
    return status;
  };
  const auto order = rotation_.Order();
  for (uint16_t device : order) {
    SPILLWAY_ASSIGN_OR_RETURN(const auto existing, TakeExisting(device, size_bytes));
    if (existing) return *existing;
    if (!may_grow) continue;
    const absl::Status status = grow(device);
    if (status.ok()) return *extents_.TakeFresh(device, size_bytes);
    // Any other failure is reported at once; the other devices are not tried.
    if (!absl::IsResourceExhausted(status)) return NoRoom(first_error, size_bytes);
  }
  for (uint16_t device : order) {
    if (!may_grow && grow(device).ok()) return *extents_.TakeFresh(device, size_bytes);
    // Growing another file may have turned the rest of the file before it into an ordinary run.
    if (const auto extent = extents_.TakeWritten(device, size_bytes)) return *extent;
  }
  return NoRoom(first_error, size_bytes);
}

absl::Status StoreSpace::OverBudget(uint64_t size_bytes) const {
  const uint64_t wanted_bytes = extents_.used_bytes() + RoundUpToUnit(size_bytes);
  return NoRoom(absl::ResourceExhaustedError(absl::StrCat(
                    "at most ", options_.max_bytes, " (", base::FormatBytes(options_.max_bytes),
                    ") may be, ", wanted_bytes - options_.max_bytes, " more are needed")),
                size_bytes);
}

// The error with its advice, if it is one: a limit on open files or on the size of a file has
// advice of its own (ErrnoToStatus).
absl::Status StoreSpace::NoRoom(const absl::Status& cause, uint64_t size_bytes) const {
  if (!absl::IsResourceExhausted(cause)) return cause;  // room is not what is lacking
  const absl::string_view why = cause.message();
  const bool is_full = !extents_.WithinBudget(size_bytes) || absl::StrContains(why, "(ENOSPC)") ||
                       absl::StrContains(why, "(EDQUOT)");
  const std::string_view advice =
      is_full ? "; allow the store more bytes, free some on its disks, or commit, which "
                "frees what only the last commit needs"
              : "";
  return {cause.code(),
          absl::StrCat("the store in ", absl::StrJoin(options_.folders, ","), " has no room for ",
                       size_bytes, " bytes: ", extents_.used_bytes(), " bytes (",
                       base::FormatBytes(extents_.used_bytes()), ") are in use; ", cause.message(),
                       absl::string_view(advice.data(), advice.size()))};
}

uint64_t StoreSpace::available_bytes() const {
  uint64_t bytes = files_.total_bytes() - extents_.used_bytes();
  for (uint16_t device = 0; device < extents_.num_devices(); ++device) {
    const auto begin = file_systems_.begin();
    if (std::find(begin, begin + device, file_systems_[device]) != begin + device)
      continue;  // this file system was counted already
    if (const auto free_bytes = FreeBytes(device); free_bytes.ok()) bytes += *free_bytes;
  }
  const uint64_t used_bytes = extents_.used_bytes();
  return std::min(bytes, options_.max_bytes - std::min(options_.max_bytes, used_bytes));
}

// --- Giving back ---

absl::StatusOr<uint64_t> StoreSpace::MakeHoles() {
  uint64_t bytes = 0;
  for (uint16_t device = 0; device < extents_.num_devices(); ++device) {
    for (bool more = true; more;) {
      SPILLWAY_ASSIGN_OR_RETURN(more, LoadMore(device));
    }
    std::vector<SegmentFiles::Region> holes;
    extents_.ForEachRun(device, [&](uint32_t segment, uint64_t offset, uint64_t size_bytes) {
      holes.push_back({segment, offset, size_bytes});
    });
    for (const SegmentFiles::Region& hole : holes) {
      SPILLWAY_ASSIGN_OR_RETURN(const uint64_t freed_bytes, files_.Punch(device, hole));
      bytes += freed_bytes;
    }
  }
  return bytes;
}

absl::Status StoreSpace::CutEnds() {
  for (uint16_t device = 0; device < extents_.num_devices(); ++device) {
    for (const SegmentFiles::Region& file : files_.Sizes(device)) {
      if (!files_.IsLost(device, file.segment)) {
        files_.Cut(device, file.segment, extents_.CutTail(device, file.segment, file.size_bytes));
        continue;
      }
      SPILLWAY_ASSIGN_OR_RETURN(const uint64_t free_bytes,
                                catalog_->FreeBytesIn(device, file.segment));
      if (free_bytes == file.size_bytes) files_.Cut(device, file.segment, 0);
    }
  }
  return absl::OkStatus();
}

}  // namespace spillway::io
