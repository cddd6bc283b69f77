// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/bench/io/room.h"

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <cerrno>
#include <map>

#include "absl/strings/str_cat.h"
#include "spillway/types.h"
#include "src/base/available_memory.h"
#include "src/base/bytes.h"
#include "src/base/errno_status.h"
#include "src/base/view.h"
#include "tools/spillway/bench/io/machine.h"

namespace spillway::bench_io {

absl::Status CheckRoom(std::span<const std::string> folders, uint64_t bytes_in_each,
                       std::string_view cure) {
  std::map<dev_t, uint64_t> needed_on;
  for (const std::string& folder : folders) {
    struct stat info;
    struct statvfs room;
    if (::stat(folder.c_str(), &info) != 0 || ::statvfs(folder.c_str(), &room) != 0) {
      return base::ErrnoToStatus(
          errno, absl::StrCat("looking at ", folder, " (give a folder that is there)"));
    }
    const uint64_t needed = needed_on[info.st_dev] += bytes_in_each;
    const uint64_t free_bytes = uint64_t{room.f_bavail} * room.f_frsize;
    if (needed <= free_bytes / 10 * 9) continue;
    return absl::ResourceExhaustedError(
        absl::StrCat(folder, " has ", base::FormatBytes(free_bytes),
                     " free, of which a tenth stays so; the benchmark needs ",
                     base::FormatBytes(needed), " there for a while: ", base::View(cure)));
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> CutToAvailableMemory(uint64_t wanted_bytes, int num_users,
                                              const std::function<void(std::string_view)>& note) {
  const uint64_t available = base::AvailableMemoryBytes() + FreeHugePageBytes();
  const uint64_t most = available / 10 * 8 / static_cast<uint64_t>(num_users);
  uint64_t bytes = base::RoundDown(wanted_bytes, 4 * kMiB);
  if (available > 0 && bytes > most) {
    bytes = base::RoundDown(most, 64 * kMiB);
    if (note) {
      note(absl::StrCat("memory to cycle through is cut to ", base::FormatBytes(bytes),
                        ": more is not free"));
    }
  }
  if (bytes < 64 * kMiB)
    return absl::ResourceExhaustedError("at least 64 MiB of memory are needed: see --memory");
  return bytes;
}

}  // namespace spillway::bench_io
