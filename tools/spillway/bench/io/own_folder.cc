// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/bench/io/own_folder.h"

#include <filesystem>
#include <optional>
#include <string_view>
#include <system_error>

#include "io/store/store_folder.h"

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

}  // namespace

void RemoveLeftovers(const std::string& parent) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(parent, error)) {
    const std::string name = entry.path().filename().string();
    const bool is_ours = name.starts_with(kPrefix) && name.size() == kPrefix.size() + 6;
    if (!is_ours || entry.is_symlink(error) || !entry.is_directory(error)) continue;
    const fs::path store = entry.path() / "store";
    if (!fs::is_directory(store, error)) continue;  // a benchmark may have made it just now
    RemoveStore(store);
    // Both calls fail, as they should, if the folder is not empty.
    fs::remove(store, error);
    fs::remove(entry.path(), error);
  }
}

}  // namespace spillway::bench_io
