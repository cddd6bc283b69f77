// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/capacity/trial_folders.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "io/io_engine.h"
#include "io/nameless_file.h"
#include "io/store/store_folder.h"
#include "src/base/bytes.h"
#include "src/base/errno_status.h"
#include "src/base/existing_folder.h"
#include "src/base/status_macros.h"

namespace spillway::capacity {
namespace {

namespace fs = std::filesystem;
using io::StoreFolder;

// A file system with holes takes a few blocks for the probe.
constexpr uint64_t kMostProbeBytes = kProbeBytes / 8;

struct FreeAligned {
  void operator()(std::byte* memory) const { std::free(memory); }
};

uint64_t StoredBytesOf(const struct stat& info) {
  return static_cast<uint64_t>(info.st_blocks) * 512;
}

absl::Status WriteAtEnd(const io::DirectFile& file, uint64_t file_bytes) {
  const std::unique_ptr<std::byte, FreeAligned> unit(
      static_cast<std::byte*>(std::aligned_alloc(io::kIoAlignment, io::kIoAlignment)));
  if (!unit) return absl::ResourceExhaustedError("no memory for 4 KiB");
  std::memset(unit.get(), 1, io::kIoAlignment);
  const auto offset = static_cast<off_t>(file_bytes - io::kIoAlignment);
  const ssize_t written = ::pwrite(file.fd(), unit.get(), io::kIoAlignment, offset);
  if (written != static_cast<ssize_t>(io::kIoAlignment) || ::fsync(file.fd()) != 0)
    return base::ErrnoToStatus(errno, absl::StrCat("write to a file in ", file.path()));
  return absl::OkStatus();
}

// Removes the files of a store that this process has open, except the identity, which vouches for
// them. Returns whether there were any.
bool UnlinkFiles(const StoreFolder& folder) {
  const auto files = folder.ListStoreFiles();
  bool any = false;
  for (const std::string& file : files.ok() ? *files : std::vector<std::string>()) {
    if (fs::path(file).filename() == "spillway-store") continue;
    any |= ::unlink(file.c_str()) == 0;
  }
  return any;
}

}  // namespace

absl::StatusOr<FileSystemProbe> ProbeFileSystem(const std::string& folder,
                                                uint64_t largest_file_bytes) {
  const std::string existing = base::ExistingFolder(folder);
  FileSystemProbe probe{.folder = folder};
  struct stat info{};
  struct statvfs space{};
  if (::stat(existing.c_str(), &info) != 0 || ::statvfs(existing.c_str(), &space) != 0)
    return base::ErrnoToStatus(errno, absl::StrCat("ask for the free space of ", existing));
  probe.device = info.st_dev;
  probe.free_bytes = uint64_t{space.f_bavail} * space.f_frsize;
  SPILLWAY_ASSIGN_OR_RETURN(const io::DirectFile file, io::OpenNamelessFile(existing));
  probe.holds_largest = ::ftruncate(file.fd(), static_cast<off_t>(largest_file_bytes)) == 0;
  if (!probe.holds_largest && errno != EFBIG && errno != ENOSPC && errno != EINVAL)
    return base::ErrnoToStatus(errno, absl::StrCat("lengthen a file in ", existing));
  if (::ftruncate(file.fd(), 0) != 0 || ::ftruncate(file.fd(), kProbeBytes) != 0) {
    if (errno != EFBIG && errno != ENOSPC)
      return base::ErrnoToStatus(errno, absl::StrCat("lengthen a file in ", existing));
    probe.sparse_file_bytes = kProbeBytes;
    return probe;
  }
  const absl::Status written = WriteAtEnd(file, kProbeBytes);
  // A full file system has no room for the bytes of the probe either; its free space tells.
  if (!written.ok() && !absl::IsResourceExhausted(written)) return written;
  if (::fstat(file.fd(), &info) != 0)
    return base::ErrnoToStatus(errno, absl::StrCat("stat a file in ", existing));
  probe.sparse_file_bytes = StoredBytesOf(info);
  return probe;
}

absl::Status CheckFileSystems(const std::vector<FileSystemProbe>& probes, const DiskNeed& need) {
  std::map<uint64_t, uint64_t> needed;  // by file system
  for (size_t i = 0; i < probes.size(); ++i) {
    const FileSystemProbe& probe = probes[i];
    needed[probe.device] += need.folder_bytes + (i == 0 ? need.first_folder_bytes : 0);
    if (!probe.holds_largest) {
      return absl::UnimplementedError(absl::StrCat(
          "the file system of ", probe.folder,
          ", or this user's limit ('ulimit -f'), has no files "
          "of ",
          base::FormatBytes(need.largest_file_bytes),
          ", as large as the layout's largest, holes included; name a folder of another"));
    }
  }
  for (const FileSystemProbe& probe : probes) {
    const uint64_t bytes = needed.at(probe.device);
    if (probe.free_bytes < bytes) {
      return absl::UnimplementedError(absl::StrCat(
          "the file system of ", probe.folder, " has ", base::FormatBytes(probe.free_bytes),
          " free, and the trial takes up to ", base::FormatBytes(bytes), " of it; free ",
          base::FormatBytes(bytes - probe.free_bytes), ", or name a folder of another"));
    }
    if (probe.sparse_file_bytes > kMostProbeBytes) {
      return absl::UnimplementedError(absl::StrCat(
          "the file system of ", probe.folder, " has no holes: a file of ",
          base::FormatBytes(kProbeBytes), " with 4 KiB written takes ",
          base::FormatBytes(probe.sparse_file_bytes),
          ", so the layout would take all of its bytes; name a folder of another, such as ext4, "
          "XFS or Btrfs"));
    }
  }
  return absl::OkStatus();
}

std::vector<std::string> MissingFolders(const std::vector<std::string>& folders) {
  std::vector<std::string> missing;
  for (const std::string& folder : folders) {
    std::error_code error;
    std::vector<std::string> above;
    for (fs::path path = fs::absolute(folder, error).lexically_normal();
         !path.empty() && !fs::exists(path, error); path = path.parent_path()) {
      if (path.has_filename()) above.push_back(path.string());
    }
    missing.insert(missing.end(), above.rbegin(), above.rend());
  }
  return missing;
}

absl::StatusOr<uint64_t> TakenDiskBytes(const std::vector<std::string>& folders) {
  uint64_t bytes = 0;
  for (const std::string& name : folders) {
    SPILLWAY_ASSIGN_OR_RETURN(const StoreFolder folder,
                              StoreFolder::Open(name, StoreFolder::Mode::kExisting));
    SPILLWAY_ASSIGN_OR_RETURN(const std::vector<std::string> files, folder.ListStoreFiles());
    for (const std::string& file : files) {
      struct stat info{};
      if (::stat(file.c_str(), &info) == 0) bytes += StoredBytesOf(info);
    }
  }
  return bytes;
}

absl::Status RemoveTrial(const std::vector<std::string>& folders,
                         const std::vector<std::string>& made) {
  absl::Status first_error;
  for (const std::string& name : folders) {
    absl::StatusOr<StoreFolder> folder = StoreFolder::Open(name, StoreFolder::Mode::kExisting);
    if (!folder.ok()) continue;  // nothing was made there
    if (const absl::Status locked = folder->Lock(); !locked.ok()) {
      first_error.Update(locked);
      continue;
    }
    const auto identity = folder->ReadIdentity();
    if (!identity.ok() || !identity->has_value() || !(*identity)->sparse) continue;
    first_error.Update(folder->RemoveStoreFiles());
  }
  for (auto folder = made.rbegin(); folder != made.rend(); ++folder) ::rmdir(folder->c_str());
  return first_error;
}

void RemoveOpenTrial(const std::vector<std::string>& folders,
                     const std::vector<std::string>& made) {
  constexpr int kQuietRounds = 5;  // the store may make a file meanwhile
  for (const std::string& name : folders) {
    const absl::StatusOr<StoreFolder> folder =
        StoreFolder::Open(name, StoreFolder::Mode::kExisting);
    if (!folder.ok()) continue;
    const auto identity = folder->ReadIdentity();
    if (!identity.ok() || !identity->has_value() || !(*identity)->sparse) continue;
    for (int quiet = 0; quiet < kQuietRounds; ++quiet) {
      if (UnlinkFiles(*folder)) quiet = 0;
      ::usleep(10'000);
    }
    for (const char* file : {"/spillway-store", "/spillway-lock"})
      ::unlink((folder->path() + file).c_str());
  }
  for (auto folder = made.rbegin(); folder != made.rend(); ++folder) ::rmdir(folder->c_str());
}

}  // namespace spillway::capacity
