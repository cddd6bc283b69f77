// SPDX-License-Identifier: Apache-2.0
//
// A folder that is mounted a second time, read-only. Mounting needs root.

#ifndef SPILLWAY_TESTS_READ_ONLY_MOUNT_H_
#define SPILLWAY_TESTS_READ_ONLY_MOUNT_H_

#include <sys/mount.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <utility>

namespace spillway::test {

// Mounts `source` at `path`, which it makes, until this object is destroyed.
class ReadOnlyMount {
 public:
  ReadOnlyMount(const std::string& source, std::string path) : path_(std::move(path)) {
    std::filesystem::create_directories(path_);
    if (::mount(source.c_str(), path_.c_str(), nullptr, MS_BIND, nullptr) == 0 &&
        ::mount(nullptr, path_.c_str(), nullptr, MS_REMOUNT | MS_BIND | MS_RDONLY, nullptr) == 0)
      return;
    why_ = std::string("mount: ") + std::strerror(errno);
  }
  ReadOnlyMount(const ReadOnlyMount&) = delete;
  ReadOnlyMount& operator=(const ReadOnlyMount&) = delete;
  ~ReadOnlyMount() { ::umount2(path_.c_str(), MNT_DETACH); }

  bool is_mounted() const { return why_.empty(); }
  const std::string& why() const { return why_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  const std::string path_;
  std::string why_;
};

}  // namespace spillway::test

#endif  // SPILLWAY_TESTS_READ_ONLY_MOUNT_H_
