// SPDX-License-Identifier: Apache-2.0

#include "io/checksum.h"

// Only this header selects AVX2 or AVX-512 at run time. The plain header uses the instruction set
// that the code was compiled for.
#if defined(__x86_64__) && __has_include(<xxh_x86dispatch.h>)
#include <xxh_x86dispatch.h>
#else
#include <xxhash.h>
#endif

namespace spillway::io {

uint64_t Checksum(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace spillway::io
