// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/bench/io/machine.h"

#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "io/checksum.h"
#include "src/base/clock.h"
#include "tools/spillway/command/file_systems.h"

namespace spillway::bench_io {
namespace {

// Returns the value of the first line "key : value" in a file, or an empty string if there is none.
std::string Field(const std::string& path, std::string_view key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with(key)) continue;
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const size_t begin = line.find_first_not_of(" \t", colon + 1);
    return begin == std::string::npos ? "" : line.substr(begin);
  }
  return "";
}

std::string FirstLine(const std::string& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line;
}

// Describes the mount that has the folder's device number. If there are several, takes the last.
Volume LookAt(const std::string& folder) {
  Volume volume = {.folder = folder, .file_system = "unknown", .device = "unknown", .model = ""};
  struct stat info;
  if (::stat(folder.c_str(), &info) != 0) return volume;
  const std::string number = absl::StrCat(::major(info.st_dev), ":", ::minor(info.st_dev));
  std::ifstream mounts("/proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream words(line);
    std::string id, parent, found, word;
    words >> id >> parent >> found;
    if (found != number) continue;
    while (words >> word && word != "-") {
    }
    words >> volume.file_system >> volume.device;
  }
  const std::string block = absl::StrCat("/sys/dev/block/", number);
  volume.model = FirstLine(block + "/device/model");
  if (volume.model.empty()) volume.model = FirstLine(block + "/../device/model");
  return volume;
}

double CopyBytesPerSecond(std::span<std::byte> memory) {
  const size_t half = memory.size() / 2;
  double best = 0;
  for (int i = 0; i < 3; ++i) {
    const double start = base::Now();
    std::memcpy(memory.data(), memory.data() + half, half);
    best = std::max(best, static_cast<double>(half) / (base::Now() - start));
  }
  return best;
}

double ChecksumSecondsPerGib(std::span<std::byte> memory) {
  constexpr size_t kPage = 1 << 20;
  uint64_t sum = 0;
  const int64_t start = base::ThreadCpuNs();
  for (size_t at = 0; at + kPage <= memory.size(); at += kPage) {
    sum += io::Checksum(memory.subspan(at, kPage));
  }
  const int64_t ns = base::ThreadCpuNs() - start + (sum == 1 ? 1 : 0);
  return static_cast<double>(ns) / 1e9 / (static_cast<double>(memory.size()) / (1 << 30));
}

uint64_t MeminfoKib(std::string_view key) {
  return std::strtoull(Field("/proc/meminfo", key).c_str(), nullptr, 10);
}

}  // namespace

Machine Describe(std::span<const std::string> folders) {
  Machine machine;
  machine.cpu = Field("/proc/cpuinfo", "model name");
  machine.num_cpus = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  utsname system;
  if (::uname(&system) == 0) machine.kernel = system.release;
  if (::getloadavg(&machine.load, 1) != 1) machine.load = 0;
  for (const std::string& folder : folders) machine.volumes.push_back(LookAt(folder));
  return machine;
}

Machine Look(std::span<const std::string> folders, std::span<std::byte> memory) {
  Machine machine = Describe(folders);
  machine.checksum_seconds_per_gib = ChecksumSecondsPerGib(memory);
  machine.copy_bytes_per_second = CopyBytesPerSecond(memory);
  return machine;
}

bool IsCached(const io::DirectFile& file) {
  struct statfs info{};
  if (!file.is_direct() || ::fstatfs(file.fd(), &info) != 0) return true;
  const auto* const known = command::FindFileSystem(static_cast<uint64_t>(info.f_type));
  return known != nullptr && known->drawback == command::kNotADisk;
}

uint64_t FreeHugePageBytes() {
  return MeminfoKib("HugePages_Free") * (MeminfoKib("Hugepagesize") << 10);
}

}  // namespace spillway::bench_io
