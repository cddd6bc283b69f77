// SPDX-License-Identifier: Apache-2.0
//
// `spillway remove`: removes a store's files, recognised by their exact names, and nothing else.

#include <sys/stat.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "io/store/store_folder.h"
#include "nlohmann/json.hpp"
#include "src/base/bytes.h"
#include "src/base/status_macros.h"
#include "tools/spillway/command/arguments.h"
#include "tools/spillway/command/commands.h"
#include "tools/spillway/command/exit_code.h"
#include "tools/spillway/command/json_text.h"

namespace spillway::command {
namespace {

using io::StoreFolder;

constexpr char kDescription[] =
    "Remove a store: the files that Spillway made in its folders, and nothing else.\n"
    "\n"
    "Without --yes the command prints what it would remove, and ends with 2. It refuses a store\n"
    "that a process has open, and names the process. The folders and all other files in them "
    "stay.\n"
    "Name all folders of the store, including any that an interrupted removal has emptied. If a\n"
    "folder is lost, make an empty folder in its place and name it.\n"
    "\n"
    "Examples:\n"
    "  spillway remove run\n"
    "  spillway remove nvme0/run,nvme1/run --yes\n"
    "  spillway remove run --json | jq -r '.files[]'\n";

struct RemoveFlags {
  std::vector<std::string> store;
  bool yes = false;
  bool json = false;
};

absl::StatusOr<std::vector<StoreFolder>> OpenFolders(const std::vector<std::string>& names) {
  std::vector<StoreFolder> folders;
  for (const std::string& name : names) {
    absl::StatusOr<StoreFolder> opened = StoreFolder::Open(name, StoreFolder::Mode::kExisting);
    // A mistyped name must not pass for a folder that is lost.
    if (absl::IsNotFound(opened.status()) && names.size() > 1) {
      return absl::NotFoundError(absl::StrCat(
          opened.status().message(),
          "; nothing was removed. If this folder of the store is lost, make an empty one there"));
    }
    SPILLWAY_ASSIGN_OR_RETURN(StoreFolder folder, std::move(opened));
    for (const StoreFolder& other : folders) {
      if (!folder.IsSameAs(other)) continue;
      return absl::InvalidArgumentError(absl::StrFormat(
          "store folders %s and %s are the same folder; name each once", other.path(), name));
    }
    folders.push_back(std::move(folder));
  }
  return folders;
}

struct LockedFolders {
  std::vector<StoreFolder> with_files;
  std::vector<std::string> without;  // empty: lost, or emptied by a removal that was interrupted
};

// Returns the folders, locked, if they are those of one store or hold what is left of one.
absl::StatusOr<LockedFolders> LockFolders(const std::vector<std::string>& names) {
  SPILLWAY_ASSIGN_OR_RETURN(std::vector<StoreFolder> folders, OpenFolders(names));
  LockedFolders locked;
  std::optional<std::pair<std::string, io::FolderIdentity>> first;
  for (size_t i = 0; i < folders.size(); ++i) {
    StoreFolder& folder = folders[i];
    const std::string& name = names[i];
    SPILLWAY_ASSIGN_OR_RETURN(const std::vector<std::string> files, folder.ListStoreFiles());
    if (files.empty()) {
      locked.without.push_back(folder.path());
      continue;
    }
    SPILLWAY_RETURN_IF_ERROR(folder.Lock());
    // A store that is damaged, or of another version, is removed as well: the files are its own. A
    // name alone proves nothing: without an identity, the files may be the user's.
    const absl::StatusOr<std::optional<io::FolderIdentity>> identity = folder.ReadIdentity();
    if (identity.ok() && identity->has_value()) {
      if (first && first->second.store_id != (*identity)->store_id) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "%s and %s are of different stores; remove one at a time", first->first, name));
      }
      if ((*identity)->num_folders != names.size()) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "%s is of a store that has %s; name all of them, and no others. For one that is lost, "
            "name an empty folder",
            name, base::FormatCount((*identity)->num_folders, "folder")));
      }
      first.emplace(name, **identity);
    } else if (identity.ok()) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "%s has files with a store's names and no identity (spillway-store), so nothing of it is "
          "removed; if they are a store's, such as %s, remove them by hand",
          folder.path(), std::filesystem::path(files.front()).filename().string()));
    } else if (!folder.HasIdentityOfOurs()) {
      return identity.status();
    }
    locked.with_files.push_back(std::move(folder));
  }
  if (!locked.with_files.empty()) return locked;
  return absl::NotFoundError(
      absl::StrFormat("there is no store in %s", absl::StrJoin(locked.without, ",")));
}

// Removes the files in the folders, the first one's last: that identity says to the end that there
// is a store to remove.
absl::Status RemoveFiles(std::vector<StoreFolder>* folders) {
  for (StoreFolder& folder : *folders) folder.Keep();  // the lock files stay until the removal
  for (auto folder = folders->rbegin(); folder != folders->rend(); ++folder) {
    SPILLWAY_RETURN_IF_ERROR(folder->RemoveStoreFiles());
    folder->Undo();  // the destructor removes the lock file with the lock
  }
  return absl::OkStatus();
}

absl::Status RunRemove(const RemoveFlags& flags) {
  SPILLWAY_RETURN_IF_ERROR(CheckStoreArgument(flags.store));
  absl::StatusOr<LockedFolders> folders = LockFolders(flags.store);
  if (absl::IsInvalidArgument(folders.status())) {
    return WithExitCode(folders.status(), ExitCode::kUsage);
  }
  SPILLWAY_RETURN_IF_ERROR(folders.status());
  for (const std::string& path : folders->without)
    absl::FPrintF(stderr, "note: %s has nothing of the store\n", path);
  std::vector<std::string> files;
  for (const StoreFolder& folder : folders->with_files) {
    SPILLWAY_ASSIGN_OR_RETURN(const auto here, folder.ListStoreFiles());
    files.insert(files.end(), here.begin(), here.end());
    if (const auto lock = folder.LockFile()) files.push_back(*lock);
  }
  uint64_t bytes = 0;
  for (const std::string& file : files) {
    struct stat info{};
    if (stat(file.c_str(), &info) == 0) bytes += static_cast<uint64_t>(info.st_blocks) * 512;
  }
  if (flags.yes) SPILLWAY_RETURN_IF_ERROR(RemoveFiles(&folders->with_files));
  const std::string what =
      absl::StrFormat("%s, %s", base::FormatCount(files.size(), "file"), base::FormatBytes(bytes));
  if (flags.json) {
    const nlohmann::ordered_json json = {
        {"v", 1}, {"removed", flags.yes}, {"files", files}, {"bytes", bytes}};
    absl::PrintF("%s\n", JsonText(json));
  } else if (flags.yes) {
    absl::PrintF("removed: %s\n", what);
  } else {
    absl::PrintF("%s\n", absl::StrJoin(files, "\n"));
  }
  if (flags.yes) return absl::OkStatus();
  return UsageError(absl::StrFormat("nothing was removed: --yes removes %s", what));
}

}  // namespace

void AddRemoveCommand(CLI::App* app, Run* run) {
  CLI::App* const remove = AddCommand(app, "remove", kDescription);
  const auto flags = std::make_shared<RemoveFlags>();
  AddStoreArgument(remove, &flags->store);
  AddFlag(remove, "--yes", &flags->yes, "Do it");
  AddFlag(remove, "--json", &flags->json, "One JSON object on stdout, nothing else there");
  WhenChosen(remove, [flags, run] { *run = [flags] { return RunRemove(*flags); }; });
}

}  // namespace spillway::command
