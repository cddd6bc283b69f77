// SPDX-License-Identifier: Apache-2.0

#include "src/base/huge_pages.h"

#include <linux/mman.h>
#include <sys/mman.h>

namespace spillway::base {

std::byte* MapHugePages(uint64_t size_bytes, int fd) {
  // Without a size, the pages are of the machine's default, which may be 1 GiB.
  const int flags = fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB | MAP_HUGE_2MB : MAP_SHARED;
  void* const mapped = ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, flags, fd, /*offset=*/0);
  if (mapped == MAP_FAILED) return nullptr;
  // mmap reserves pages of the machine, and does not ask whether this process's cgroup may use
  // them. Its own MAP_POPULATE would not say that they are missing.
  if (::madvise(mapped, size_bytes, MADV_POPULATE_WRITE) == 0)
    return static_cast<std::byte*>(mapped);
  ::munmap(mapped, size_bytes);
  return nullptr;
}

}  // namespace spillway::base
