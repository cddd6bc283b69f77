// SPDX-License-Identifier: Apache-2.0
//
// Small file systems that are really mounted. Mounting one needs root.

#ifndef SPILLWAY_TESTS_SPILLWAY_SMALL_DISK_H_
#define SPILLWAY_TESTS_SPILLWAY_SMALL_DISK_H_

#include <sys/mount.h>
#include <sys/wait.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string>

namespace spillway::test {

enum class DiskKind { kTmpfs, kExt4 };

// Runs a shell command without its output and returns its exit code.
inline int Shell(const std::string& words) {
  return WEXITSTATUS(std::system((words + " >/dev/null 2>&1").c_str()));
}

// A file system of `kib` KiB, mounted under `folder` until this object is destroyed.
class SmallDisk {
 public:
  SmallDisk(DiskKind kind, uint64_t kib, const std::string& folder)
      : place_(folder + "/mount"), image_(folder + "/image") {
    std::filesystem::create_directories(place_);
    if (kind == DiskKind::kTmpfs) {
      const std::string size = "size=" + std::to_string(kib) + "k";
      mounted_ = mount("tmpfs", place_.c_str(), "tmpfs", 0, size.c_str()) == 0;
      if (!mounted_) why_ = std::string("mount: ") + std::strerror(errno);
      return;
    }
    mounted_ = Shell("truncate -s " + std::to_string(kib) + "k " + image_) == 0 &&
               Shell("/usr/sbin/mkfs.ext4 -q -F -O ^has_journal -m 0 " + image_) == 0 &&
               Shell("mount -o loop " + image_ + " " + place_) == 0;
    if (!mounted_) why_ = "cannot make and mount an ext4 image";
  }
  SmallDisk(const SmallDisk&) = delete;
  SmallDisk& operator=(const SmallDisk&) = delete;
  ~SmallDisk() {
    if (mounted_) Shell("umount " + place_);
  }
  bool is_mounted() const { return mounted_; }
  const std::string& why() const { return why_; }
  const std::string& path() const { return place_; }

 private:
  std::string place_;
  std::string image_;
  std::string why_;
  bool mounted_ = false;
};

}  // namespace spillway::test

#endif  // SPILLWAY_TESTS_SPILLWAY_SMALL_DISK_H_
