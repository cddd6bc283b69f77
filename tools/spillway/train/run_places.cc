// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/train/run_places.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "src/base/status_macros.h"
#include "tools/spillway/command/exit_code.h"
#include "tools/spillway/command/real_path.h"

namespace spillway::command {
namespace {

namespace fs = std::filesystem;

bool IsDevice(const std::string& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  return fs::exists(status) && !fs::is_regular_file(status) && !fs::is_directory(status);
}

absl::Status CheckFile(const NamedPlace& file, const std::string& save,
                       const std::vector<std::string>& store) {
  const fs::path path = RealPath(file.path);
  if (!save.empty() && path != RealPath(save) && LiesIn(RealPath(save), path)) {
    return UsageError(absl::StrFormat("--save %s lies in %s %s, which is a file; name another",
                                      save, file.flag, file.path));
  }
  if (!save.empty() && LiesIn(path, RealPath(save))) {
    return UsageError(absl::StrFormat(
        "%s %s lies in the folder of --save %s, which appears whole at the end; name a file "
        "elsewhere",
        file.flag, file.path, save));
  }
  for (const std::string& folder : store) {
    const fs::path of_store = RealPath(folder);
    const bool is_of_store =
        path.parent_path() == of_store && absl::StartsWith(path.filename().string(), "spillway-");
    if (!LiesIn(of_store, path) && !is_of_store) continue;
    return UsageError(absl::StrFormat("%s %s is %s of --store %s; give another name", file.flag,
                                      file.path, is_of_store ? "a file" : "the folder", folder));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckApart(const std::vector<NamedPlace>& files, const std::string& save,
                        const std::vector<std::string>& store) {
  for (size_t i = 0; i < files.size(); ++i) {
    if (files[i].path.empty() || IsDevice(files[i].path)) continue;
    SPILLWAY_RETURN_IF_ERROR(CheckFile(files[i], save, store));
    for (size_t j = 0; j < i; ++j) {
      if (files[j].path.empty() || RealPath(files[j].path) != RealPath(files[i].path)) continue;
      return UsageError(absl::StrFormat("%s and %s are both %s; give each a file of its own",
                                        files[j].flag, files[i].flag, files[i].path));
    }
  }
  for (const std::string& folder : store) {
    if (save.empty() ||
        (!LiesIn(RealPath(save), RealPath(folder)) && !LiesIn(RealPath(folder), RealPath(save)))) {
      continue;
    }
    return UsageError(absl::StrFormat(
        "--save %s and --store %s lie in each other; an export is a folder of its own, so name "
        "one elsewhere",
        save, folder));
  }
  return absl::OkStatus();
}

}  // namespace spillway::command
