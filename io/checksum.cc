// SPDX-License-Identifier: Apache-2.0

#include "io/checksum.h"

#include <xxhash.h>

namespace spillway::io {

uint64_t Checksum(std::span<const std::byte> bytes) {
  return XXH3_64bits(bytes.data(), bytes.size());
}

}  // namespace spillway::io
