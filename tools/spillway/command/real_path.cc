// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/command/real_path.h"

#include <algorithm>
#include <system_error>

namespace spillway::command {

namespace fs = std::filesystem;

fs::path RealPath(const std::string& path) {
  std::error_code error;
  fs::path real = fs::weakly_canonical(fs::absolute(path, error), error);
  if (error) real = path;
  real = real.lexically_normal();
  return real.has_filename() ? real : real.parent_path();  // "out/" names the folder "out"
}

bool LiesIn(const fs::path& inner, const fs::path& outer) {
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

}  // namespace spillway::command
