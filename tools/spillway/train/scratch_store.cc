// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/train/scratch_store.h"

#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <system_error>

#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "io/store/folder_identity.h"
#include "io/store/store_folder.h"
#include "tools/spillway/command/interrupt.h"

namespace spillway::command {
namespace {

namespace fs = std::filesystem;
using io::StoreFolder;

// Returns the id of the scratch store in a folder; "" if there is none.
std::string ScratchIdIn(const StoreFolder& folder) {
  const absl::StatusOr<std::optional<io::FolderIdentity>> identity = folder.ReadIdentity();
  if (!identity.ok() || !identity->has_value() || !(*identity)->scratch) return "";
  return (*identity)->store_id;
}

// Returns the id of the scratch store in the folder of this path; "" if there is none.
std::string ScratchIdAt(const std::string& path) {
  const absl::StatusOr<StoreFolder> folder = StoreFolder::Open(path, StoreFolder::Mode::kExisting);
  return folder.ok() ? ScratchIdIn(*folder) : "";
}

// Removes the files of the store with this id. Tries repeatedly, because the process may make files
// meanwhile. The lock file goes last: until then the folder is still this process's. False if files
// are left.
bool RemoveFiles(const std::string& path, const std::string& id) {
  absl::StatusOr<StoreFolder> folder = StoreFolder::Open(path, StoreFolder::Mode::kExisting);
  if (!folder.ok() || ScratchIdIn(*folder) != id) return true;
  const std::optional<std::string> lock = folder->LockFile();
  bool is_empty = false;
  for (int round = 0; round < 100 && !is_empty; ++round) {
    (void)folder->RemoveStoreFiles();
    const absl::StatusOr<std::vector<std::string>> left = folder->ListStoreFiles();
    is_empty = left.ok() && left->empty();
  }
  if (is_empty && lock) (void)folder->RemoveFile(*lock);
  return is_empty;
}

}  // namespace

std::vector<std::string> MissingFolders(const std::vector<std::string>& store) {
  std::vector<std::string> missing;
  std::error_code error;
  for (const std::string& path : store) {
    fs::path folder = fs::absolute(path, error).lexically_normal();
    if (!folder.has_filename()) folder = folder.parent_path();
    for (; folder.has_relative_path() && !fs::exists(fs::symlink_status(folder, error));
         folder = folder.parent_path()) {
      missing.push_back(folder.string());
    }
  }
  return missing;
}

void RemoveOnSecondInterrupt(const std::vector<std::string>& store,
                             const std::vector<std::string>& made) {
  std::vector<std::string> ids;
  for (const std::string& path : store) ids.push_back(ScratchIdAt(path));
  TidyOnSecondInterrupt([store, made, ids] {
    bool is_removed = true;
    for (size_t i = 0; i < store.size(); ++i) {
      if (!ids[i].empty() && !RemoveFiles(store[i], ids[i])) is_removed = false;
    }
    // rmdir fails, as it should, for a folder into which another program has put something.
    for (const std::string& folder : made) rmdir(folder.c_str());
    if (is_removed) return;
    absl::FPrintF(stderr,
                  "spillway: the scratch store is left; spillway remove %s --yes removes it\n",
                  absl::StrJoin(store, ","));
  });
}

}  // namespace spillway::command
