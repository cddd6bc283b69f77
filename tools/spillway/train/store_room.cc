// SPDX-License-Identifier: Apache-2.0
//
// Computes the bytes that a run needs on disk, and those that are available.

#include "tools/spillway/train/store_room.h"

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "io/store/store.h"
#include "io/store/store_space.h"
#include "spillway/engine.h"
#include "src/base/bytes.h"
#include "src/base/existing_folder.h"
#include "tools/spillway/command/exit_code.h"

namespace spillway::command {
namespace {

namespace fs = std::filesystem;

// The room that a store needs at its fullest, in bytes.
struct RoomNeeded {
  uint64_t state = 0;      // one copy of what a commit holds
  uint64_t spilled = 0;    // gradients and activations; 0 if pinned memory holds everything
  uint64_t in_flight = 0;  // new copies of pages whose old copies are not free yet
  uint64_t catalog = 0;    // the catalog's files, which the budget does not cover
  int copies = 1;          // of the state

  uint64_t tensors() const { return copies * state + spilled + in_flight; }
};

RoomNeeded NeededRoom(const StorePlace& place, const StoreNeed& need) {
  RoomNeeded room;
  room.state = need.state.committed_room;
  room.copies = need.keeps_old_copy ? 2 : 1;
  const uint64_t page_bytes = place.page_bytes > 0 ? place.page_bytes : io::kDefaultPageBytes;
  const uint64_t all = need.state.committed_room + need.state.transient_room;
  if (place.pinned_bytes < all) {
    const EngineOptions defaults;
    room.spilled = need.state.transient_room;
    room.in_flight = std::min(all, defaults.queue_depth * page_bytes);
  }
  room.catalog = io::CatalogReserveBytes(room.tensors(), page_bytes);
  return room;
}

// Returns the free bytes of the file systems that hold the folders. Each file system counts once.
uint64_t FreeBytes(const std::vector<std::string>& folders) {
  uint64_t free = 0;
  std::set<dev_t> seen;
  for (const std::string& folder : folders) {
    const std::string existing = base::ExistingFolder(folder);
    struct stat info{};
    struct statvfs space{};
    if (stat(existing.c_str(), &info) != 0 || statvfs(existing.c_str(), &space) != 0) continue;
    if (seen.insert(info.st_dev).second) free += uint64_t{space.f_bavail} * space.f_frsize;
  }
  return free;
}

// Returns the bytes that files in the folders take. A store reuses this space.
uint64_t TakenBytes(const std::vector<std::string>& folders) {
  uint64_t taken = 0;
  for (const std::string& folder : folders) {
    std::error_code error;
    if (!fs::is_directory(folder, error)) continue;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
      struct stat info{};
      if (stat(entry.path().c_str(), &info) == 0 && S_ISREG(info.st_mode)) {
        taken += static_cast<uint64_t>(info.st_blocks) * 512;
      }
    }
  }
  return taken;
}

// Whether the file system that holds a folder holds one of the others, too.
bool SharesFileSystem(const std::string& folder, const std::vector<std::string>& others) {
  struct stat info{};
  if (stat(base::ExistingFolder(folder).c_str(), &info) != 0) return false;
  return std::any_of(others.begin(), others.end(), [&](const std::string& other) {
    struct stat of_other{};
    return stat(base::ExistingFolder(other).c_str(), &of_other) == 0 &&
           of_other.st_dev == info.st_dev;
  });
}

std::string Explain(const RoomNeeded& room) {
  std::string text = absl::StrFormat("the training state takes %s", base::FormatBytes(room.state));
  if (room.copies == 2)
    text += ", twice, because the last commit is kept until the next is complete";
  if (room.spilled > 0) {
    text += absl::StrFormat(
        ", and %s of gradients, activations and pages in flight may not fit in memory",
        base::FormatBytes(room.spilled + room.in_flight));
  }
  return text;
}

}  // namespace

absl::Status CheckStoreRoom(const StorePlace& place, const StoreNeed& need) {
  const RoomNeeded room = NeededRoom(place, need);
  const uint64_t tensors = room.tensors();
  if (place.store_bytes < tensors) {
    return UsageError(absl::StrFormat(
        "--store-bytes %s is too small: %s; give at least %s (%d bytes)",
        base::FormatBytes(place.store_bytes), Explain(room), base::FormatBytes(tensors), tensors));
  }
  const uint64_t available = FreeBytes(place.folders) + TakenBytes(place.folders);
  const uint64_t needed = tensors + room.catalog;
  if (available >= needed) return absl::OkStatus();
  const absl::Status full = absl::ResourceExhaustedError(absl::StrFormat(
      "%s: %s free, but %s are needed: %s, and the catalog %s; free some space or give other "
      "folders",
      absl::StrJoin(place.folders, ", "), base::FormatBytes(available), base::FormatBytes(needed),
      Explain(room), base::FormatBytes(room.catalog)));
  return WithExitCode(full, ExitCode::kFailed);
}

absl::Status CheckRoomForExport(const StorePlace& place, const StoreNeed& need,
                                const std::string& save, uint64_t export_bytes) {
  if (!SharesFileSystem(save, place.folders)) return absl::OkStatus();
  const RoomNeeded room = NeededRoom(place, need);
  const uint64_t needed = room.tensors() + room.catalog;
  const uint64_t taken = TakenBytes(place.folders);
  const uint64_t to_take = needed > taken ? needed - taken : 0;
  const uint64_t free = FreeBytes(place.folders);
  if (free >= to_take + export_bytes) return absl::OkStatus();
  const absl::Status full = absl::ResourceExhaustedError(absl::StrFormat(
      "--store %s and --save %s are on one file system: %s free, but %s are needed, %s more for "
      "the store (%s, and the catalog %s) and %s for the exported weights; free some space or name "
      "a folder elsewhere",
      absl::StrJoin(place.folders, ","), save, base::FormatBytes(free),
      base::FormatBytes(to_take + export_bytes), base::FormatBytes(to_take), Explain(room),
      base::FormatBytes(room.catalog), base::FormatBytes(export_bytes)));
  return WithExitCode(full, ExitCode::kFailed);
}

std::string DescribeStoreCost(const StorePlace& place, const StoreNeed& need) {
  const RoomNeeded room = NeededRoom(place, need);
  std::string text =
      absl::StrFormat("the store takes up to %s, in files that grow by up to %s",
                      base::FormatBytes(room.tensors() + room.catalog),
                      base::FormatBytes(std::max(
                          io::GrowBytes(room.tensors() / place.folders.size()), place.page_bytes)));
  if (!need.is_committed) return text + ", is never synced, and is removed at the end";
  absl::StrAppendFormat(&text, "; a commit writes what changed since the last, at most %s",
                        base::FormatBytes(room.state));
  if (room.copies == 1) {
    absl::StrAppendFormat(&text, "; one before the end (SIGUSR1) needs %s more room",
                          base::FormatBytes(room.state));
  }
  return text;
}

absl::Status WithRoomMissing(const absl::Status& status, const StorePlace& place,
                             const StoreNeed& need) {
  if (!absl::IsResourceExhausted(status) || place.folders.empty() ||
      !absl::StrContains(status.message(), std::strerror(ENOSPC))) {
    return status;
  }
  const RoomNeeded room = NeededRoom(place, need);
  const uint64_t needed = room.tensors() + room.catalog;
  const uint64_t taken = TakenBytes(place.folders);
  const uint64_t free = FreeBytes(place.folders);
  const uint64_t page_bytes = place.page_bytes > 0 ? place.page_bytes : io::kDefaultPageBytes;
  // A store may have taken more than this run needs, for snapshots and for free space between
  // pages.
  const uint64_t wanted = needed > taken ? needed - taken : page_bytes;
  const std::string has =
      needed > taken
          ? absl::StrFormat("The store takes up to %s and has taken %s; %s are free",
                            base::FormatBytes(needed), base::FormatBytes(taken),
                            base::FormatBytes(free))
          : absl::StrFormat(
                "The store has taken %s; %s are free, and it must take another page, "
                "of %s",
                base::FormatBytes(taken), base::FormatBytes(free), base::FormatBytes(page_bytes));
  const std::string advice =
      wanted > free
          ? absl::StrFormat("free at least %s more", base::FormatBytes(wanted - free))
          : "that should do, so files (df -i), a quota or a moment's lack of space is the cause";
  return WithExitCode(absl::ResourceExhaustedError(absl::StrFormat(
                          "%s. %s: %s", std::string(status.message()), has, advice)),
                      ExitCode::kFailed);
}

}  // namespace spillway::command
