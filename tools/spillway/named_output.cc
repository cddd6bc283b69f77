// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/named_output.h"

#include <filesystem>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace spillway::command {
namespace {

namespace fs = std::filesystem;
using trainer::OutputFile;

// "a store" or "a model" if the file's folder is one's, else "". The file's own folder, where the
// name is a link.
std::string OwnerOfFolder(const std::string& path) {
  std::error_code error;
  const fs::path folder = fs::weakly_canonical(path, error).parent_path();
  for (const char* name : {"spillway-store", "spillway-catalog.sqlite"}) {
    if (fs::exists(folder / name, error)) return "a store";
  }
  return fs::exists(folder / "config.json", error) ? "a model" : "";
}

}  // namespace

absl::StatusOr<OutputFile> OpenOutput(const std::string& flag, const std::string& path,
                                      const OutputFile::Kind& kind, bool force) {
  const std::string owner = OwnerOfFolder(path);
  const bool may_replace = force && owner.empty();
  absl::StatusOr<OutputFile> file = OutputFile::Open(
      path, kind, may_replace ? OutputFile::IfOther::kReplace : OutputFile::IfOther::kRefuse);
  if (absl::IsAlreadyExists(file.status()) && force && !owner.empty()) {
    return absl::AlreadyExistsError(
        absl::StrFormat("%s %s: that file is not %s and lies in the folder of %s, where nothing is "
                        "replaced; give another name",
                        flag, path, kind.name, owner));
  }
  if (!file.ok()) {
    return absl::Status(file.status().code(),
                        absl::StrCat(flag, " ", std::string(file.status().message())));
  }
  return file;
}

}  // namespace spillway::command
