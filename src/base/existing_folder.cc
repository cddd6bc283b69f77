// SPDX-License-Identifier: Apache-2.0

#include "src/base/existing_folder.h"

#include <filesystem>
#include <system_error>

namespace spillway::base {

std::string ExistingFolder(const std::string& folder) {
  std::error_code error;
  std::filesystem::path path = std::filesystem::absolute(folder, error).lexically_normal();
  while (!std::filesystem::is_directory(path, error) && path.has_relative_path()) {
    path = path.parent_path();
  }
  return path.string();
}

}  // namespace spillway::base
