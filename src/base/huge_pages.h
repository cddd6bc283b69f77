// SPDX-License-Identifier: Apache-2.0
//
// Memory in huge pages that were reserved on the machine (hugetlbfs).

#ifndef SPILLWAY_BASE_HUGE_PAGES_H_
#define SPILLWAY_BASE_HUGE_PAGES_H_

#include <cstddef>
#include <cstdint>

namespace spillway::base {

inline constexpr uint64_t kHugePageBytes = uint64_t{2} << 20;

// Maps zeroed memory in pages of 2 MiB, which are all there on return: a fault that finds no huge
// page would kill the process. Returns null if the machine has too few of them reserved, if this
// process may not use them, or if the kernel is older than Linux 5.14. The caller unmaps with
// munmap. With `fd`, the memory is the start of that file, which is in huge pages, and shared with
// all who map it. REQUIRES: size_bytes is a multiple of kHugePageBytes.
std::byte* MapHugePages(uint64_t size_bytes, int fd = -1);

}  // namespace spillway::base

#endif  // SPILLWAY_BASE_HUGE_PAGES_H_
