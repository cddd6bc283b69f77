// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/command/named_output.h"

#include <filesystem>
#include <string_view>
#include <system_error>

#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "tools/spillway/command/exit_code.h"

namespace spillway::command {
namespace {

namespace fs = std::filesystem;
using trainer::OutputFile;

constexpr std::string_view kStore = "a store";

// Returns what the file's folder is: "a store", "a model", "a data set" or "". REQUIRES: links in
// `path` are resolved, so that the folder is the file's own.
std::string_view OwnerOf(const fs::path& path) {
  std::error_code error;
  const fs::path folder = path.parent_path();
  for (const char* name : {"spillway-store", "spillway-catalog.sqlite"}) {
    if (fs::exists(folder / name, error)) return kStore;
  }
  if (fs::exists(folder / "config.json", error)) return "a model";
  return fs::exists(folder / "train.npy", error) ? "a data set" : "";
}

}  // namespace

absl::StatusOr<OutputFile> OpenOutput(const std::string& flag, const std::string& path,
                                      const OutputFile::Kind& kind, bool force) {
  if (path == "-") {
    return UsageError(absl::StrFormat(
        "%s - names no file: give /dev/stdout, or ./- for a file of that name", flag));
  }
  std::error_code error;
  const fs::path real = fs::weakly_canonical(path, error);
  const std::string_view owner = OwnerOf(real);
  if (owner == kStore && absl::StartsWith(real.filename().string(), "spillway-")) {
    return absl::AlreadyExistsError(absl::StrFormat(
        "%s %s has a name that only files of the store there have; give another name", flag, path));
  }
  const bool may_replace = force && owner.empty();
  absl::StatusOr<OutputFile> file = OutputFile::Open(
      path, kind, may_replace ? OutputFile::IfOther::kReplace : OutputFile::IfOther::kRefuse);
  if (absl::IsAlreadyExists(file.status()) && !owner.empty()) {
    return absl::AlreadyExistsError(
        absl::StrFormat("%s %s: that file is not %s and lies in the folder of %s, where nothing is "
                        "replaced, with or without --force; give another name",
                        flag, path, kind.name, std::string(owner)));
  }
  if (!file.ok()) {
    return absl::Status(file.status().code(),
                        absl::StrCat(flag, " ", std::string(file.status().message())));
  }
  return file;
}

}  // namespace spillway::command
