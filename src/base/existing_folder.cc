// SPDX-License-Identifier: Apache-2.0

#include "src/base/existing_folder.h"

#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>

namespace spillway::base {
namespace {

namespace fs = std::filesystem;

// Returns where a link points; of a chain of links, the first few: "b, a link to c".
std::string Targets(fs::path link) {
  constexpr int kMostShown = 4;
  std::string text;
  std::error_code error;
  for (int shown = 0; shown < kMostShown && fs::is_symlink(fs::symlink_status(link, error));
       ++shown) {
    const fs::path target = fs::read_symlink(link, error);
    if (error) break;
    text += (shown == 0 ? "" : ", a link to ") + target.string();
    link = link.parent_path() / target;
  }
  return text;
}

// Returns why the link leads to no folder, and the cure; empty if it leads to one.
std::string WhyNoFolder(const fs::path& link) {
  struct stat info{};
  const int error = ::stat(link.c_str(), &info) == 0 ? 0 : errno;
  if (error == 0 && S_ISDIR(info.st_mode)) return "";
  if (error == 0) return "which is not a folder; remove the link, or name another folder";
  if (error == ELOOP)
    return "which leads round in a circle; remove the link, or name another folder";
  if (error == ENOENT) return "which does not exist; make that folder, or remove the link";
  return std::string("which cannot be reached (") + std::strerror(error) + "); name another folder";
}

}  // namespace

std::string ExistingFolder(const std::string& folder) {
  std::error_code error;
  fs::path path = fs::absolute(folder, error).lexically_normal();
  while (!fs::is_directory(path, error) && path.has_relative_path()) {
    path = path.parent_path();
  }
  return path.string();
}

std::string BrokenLink(const std::string& path) {
  std::error_code error;
  fs::path prefix;
  for (const fs::path& part : fs::absolute(path, error)) {
    prefix /= part;
    if (!fs::is_symlink(fs::symlink_status(prefix, error))) continue;
    const std::string why = WhyNoFolder(prefix);
    if (!why.empty())
      return prefix.string() + " is a symbolic link to " + Targets(prefix) + ", " + why;
  }
  return "";
}

}  // namespace spillway::base
