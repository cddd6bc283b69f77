// SPDX-License-Identifier: Apache-2.0
//
// Finds how much memory a process can still get.

#ifndef SPILLWAY_BASE_AVAILABLE_MEMORY_H_
#define SPILLWAY_BASE_AVAILABLE_MEMORY_H_

#include <cstdint>
#include <string>

namespace spillway::base {

// Returns the bytes of memory available without swapping: MemAvailable, or less if a control group
// of this process (version 1 or 2), as containers have, leaves less below its limit. Cached files
// count as available in both. 0 if the kernel does not say. `root` is the folder that holds proc
// and sys.
uint64_t AvailableMemoryBytes(const std::string& root = "/");

}  // namespace spillway::base

#endif  // SPILLWAY_BASE_AVAILABLE_MEMORY_H_
