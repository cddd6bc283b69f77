// SPDX-License-Identifier: Apache-2.0
//
// Tests calibration on a machine that has huge pages which this process may not use. mmap gives
// them, as it only reserves them, and the first access kills the process.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <linux/mman.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>
#include <memory>

#include "io/make_io_engine.h"
#include "io/store/calibration.h"

namespace spillway::io {
namespace {

int huge_flags = 0;  // of the last call of mmap for huge pages

// Maps an empty file instead of huge pages: that can be mapped, too, and not accessed.
void* Map(void* address, size_t size_bytes, int protection, int flags, int fd, off_t offset) {
  const bool is_huge = (flags & MAP_HUGETLB) != 0;
  if (is_huge) {
    huge_flags = flags;
    fd = ::memfd_create("empty", MFD_CLOEXEC);
    flags = MAP_PRIVATE | (flags & MAP_POPULATE);
  }
  const int64_t mapped = ::syscall(SYS_mmap, address, size_bytes, protection, flags, fd, offset);
  if (is_huge) ::close(fd);
  return reinterpret_cast<void*>(mapped);
}

TEST(CalibrationMemory, HugePagesThatMayNotBeUsedAreNotUsed) {
  const auto engine = *MakeIoEngine(IoKind::kPosix, {}, testing::TempDir());
  const auto profile = Calibrate(testing::TempDir(), *engine, 0,
                                 {.file_bytes = kLeastCalibrationBytes,
                                  .queue_bytes = kLeastCalibrationBytes,
                                  .limit = absl::Milliseconds(300),
                                  .sample = absl::Milliseconds(1)});
  EXPECT_TRUE(profile.ok()) << profile.status();
  ASSERT_NE(huge_flags, 0) << "no huge pages were asked for";
  EXPECT_EQ(huge_flags & (MAP_HUGE_MASK << MAP_HUGE_SHIFT), MAP_HUGE_2MB)
      << "the default size of a huge page may be 1 GiB";
}

}  // namespace
}  // namespace spillway::io

#pragma GCC visibility push(default)
extern "C" {
void* mmap(void* address, size_t size, int protection, int flags, int fd, off_t offset) noexcept {
  return spillway::io::Map(address, size, protection, flags, fd, offset);
}
void* mmap64(void* address, size_t size, int protection, int flags, int fd,
             off64_t offset) noexcept {
  return spillway::io::Map(address, size, protection, flags, fd, offset);
}
}  // extern "C"
#pragma GCC visibility pop
