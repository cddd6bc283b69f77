// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/command/real_path.h"

#include <algorithm>
#include <set>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "tools/spillway/command/exit_code.h"

namespace spillway::command {

namespace fs = std::filesystem;

fs::path RealPath(const std::string& path) {
  std::error_code error;
  fs::path real = fs::weakly_canonical(fs::absolute(path, error), error);
  if (error) real = path;
  real = real.lexically_normal();
  return real.has_filename() ? real : real.parent_path();  // "out/" names the folder "out"
}

absl::Status CheckNamedOnce(const std::vector<std::string>& paths) {
  std::set<fs::path> places;
  for (const std::string& path : paths) {
    if (!places.insert(RealPath(path)).second)
      return UsageError(absl::StrCat("'", path, "' is a folder that is named before already"));
  }
  return absl::OkStatus();
}

bool LiesIn(const fs::path& inner, const fs::path& outer) {
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

}  // namespace spillway::command
