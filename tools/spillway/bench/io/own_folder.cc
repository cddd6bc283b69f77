// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/bench/io/own_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "io/store/store_folder.h"
#include "src/base/errno_status.h"

namespace spillway::bench_io {
namespace {

namespace fs = std::filesystem;
using io::StoreFolder;

constexpr std::string_view kPrefix = "spillway-bench-";

void RemoveStore(const fs::path& path) {
  absl::StatusOr<StoreFolder> folder =
      StoreFolder::Open(path.string(), StoreFolder::Mode::kExisting);
  if (!folder.ok() || !folder->Lock().ok()) return;
  const absl::StatusOr<std::optional<io::FolderIdentity>> identity = folder->ReadIdentity();
  if (!identity.ok() || !identity->has_value() || !(*identity)->scratch) return;
  (void)folder->RemoveStoreFiles();  // the lock file is removed with the lock
}

// Opens a folder; -1 and errno if that fails.
int OpenFolder(const std::string& path) {
  return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
}

}  // namespace

absl::StatusOr<OwnFolder> OwnFolder::Make(const std::string& parent) {
  RemoveLeftovers(parent);
  while (true) {
    std::string path = absl::StrCat(parent, "/spillway-bench-XXXXXX");
    if (::mkdtemp(path.data()) == nullptr)
      return base::ErrnoToStatus(errno, absl::StrCat("making a folder in ", parent));
    const int fd = OpenFolder(path);
    if (fd < 0 && errno != ENOENT)
      return base::ErrnoToStatus(errno, absl::StrCat("opening ", path));
    OwnFolder folder(path, fd);
    // A benchmark that removes what was left holds the lock for a moment, and may remove this.
    while (::flock(fd, LOCK_EX) != 0 && errno == EINTR) {
    }
    std::error_code error;
    if (fd >= 0 && fs::is_directory(path, error)) return folder;
  }
}

void RemoveLeftovers(const std::string& parent) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(parent, error)) {
    const std::string name = entry.path().filename().string();
    const bool is_ours = name.starts_with(kPrefix) && name.size() == kPrefix.size() + 6;
    if (!is_ours || entry.is_symlink(error) || !entry.is_directory(error)) continue;
    const int fd = OpenFolder(entry.path().string());
    if (fd >= 0 && ::flock(fd, LOCK_EX | LOCK_NB) == 0) {  // no benchmark that runs holds it
      const fs::path store = entry.path() / "store";
      if (fs::is_directory(store, error)) RemoveStore(store);
      // Both calls fail, as they should, if the folder is not empty.
      fs::remove(store, error);
      fs::remove(entry.path(), error);
    }
    if (fd >= 0) ::close(fd);
  }
}

}  // namespace spillway::bench_io
