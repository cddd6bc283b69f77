// SPDX-License-Identifier: Apache-2.0

#include "src/base/available_memory.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string_view>

namespace spillway::base {
namespace {

namespace fs = std::filesystem;

// What the two versions of control groups call their files and values.
struct Names {
  const char* limit;
  const char* usage;
  const char* inactive_file;
  const char* active_file;
};
constexpr Names kVersion1 = {"memory.limit_in_bytes", "memory.usage_in_bytes",
                             "total_inactive_file", "total_active_file"};
constexpr Names kVersion2 = {"memory.max", "memory.current", "inactive_file", "active_file"};

// Returns the number that a file holds, or nullopt if there is none ("max").
std::optional<uint64_t> ReadNumber(const fs::path& path) {
  std::ifstream file(path);
  uint64_t number = 0;
  return file >> number ? std::optional(number) : std::nullopt;
}

// Returns the number behind `key` in a file of lines "key number", or 0.
uint64_t ReadField(const fs::path& path, std::string_view key) {
  std::ifstream file(path);
  std::string word;
  uint64_t number = 0;
  for (std::string line; std::getline(file, line);) {
    if (std::istringstream(line) >> word >> number && word == key) return number;
  }
  return 0;
}

// Returns the bytes that the group's limit leaves, or nullopt if it has none.
std::optional<uint64_t> LeftIn(const fs::path& group, const Names& names) {
  const std::optional<uint64_t> limit = ReadNumber(group / names.limit);
  const std::optional<uint64_t> usage = ReadNumber(group / names.usage);
  if (!limit || !usage) return std::nullopt;
  const uint64_t cached = ReadField(group / "memory.stat", names.inactive_file) +
                          ReadField(group / "memory.stat", names.active_file);
  return *limit - std::min(*limit, *usage - std::min(*usage, cached));
}

}  // namespace

uint64_t AvailableMemoryBytes(const std::string& root) {
  const fs::path proc = fs::path(root) / "proc", groups = fs::path(root) / "sys/fs/cgroup";
  uint64_t available = ReadField(proc / "meminfo", "MemAvailable:") << 10;
  std::ifstream lines(proc / "self/cgroup");
  for (std::string line; std::getline(lines, line);) {  // "4:memory:/a/b", or "0::/a/b"
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (!controllers.empty() && controllers != "memory") continue;
    const bool is_first_version = !controllers.empty();
    // A container without a namespace for groups sees its own group at the top, and not `path`.
    for (fs::path path = line.substr(second + 1);; path = path.parent_path()) {
      const fs::path group = (is_first_version ? groups / "memory" : groups) / path.relative_path();
      available = std::min(
          available, LeftIn(group, is_first_version ? kVersion1 : kVersion2).value_or(available));
      if (!path.has_relative_path()) break;
    }
  }
  return available;
}

}  // namespace spillway::base
