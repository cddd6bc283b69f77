// SPDX-License-Identifier: Apache-2.0
//
// The ranges of host memory that are registered with a GPU's driver, each by a call of its own.

#ifndef SPILLWAY_TIERS_REGISTERED_RANGES_H_
#define SPILLWAY_TIERS_REGISTERED_RANGES_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>

#include "absl/base/thread_annotations.h"
#include "src/base/mutex.h"

namespace spillway::tiers {

// Thread-safe.
class RegisteredRanges {
 public:
  void Add(std::span<const std::byte> range);
  void Remove(const std::byte* start);

  // Returns how many of the `size_bytes` at `memory` one copy may take: those up to the end of the
  // range that contains the first byte, or all if no range contains it. CUDA refuses a copy that
  // continues into the next range (cudaErrorInvalidValue, seen with CUDA 13.0).
  uint64_t CopyBytes(const std::byte* memory, uint64_t size_bytes) const;

 private:
  mutable base::Mutex mutex_;
  std::map<const std::byte*, uint64_t> sizes_ ABSL_GUARDED_BY(mutex_);  // by first byte
};

}  // namespace spillway::tiers

#endif  // SPILLWAY_TIERS_REGISTERED_RANGES_H_
