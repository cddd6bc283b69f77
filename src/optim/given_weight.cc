// SPDX-License-Identifier: Apache-2.0

#include "src/optim/given_weight.h"

#include <cstddef>
#include <cstring>

#include "src/optim/element_codecs.h"

namespace spillway::optim {

void TakeGiven(DType dtype, const void* weight, int64_t n, float* master) {
  alignas(64) uint16_t rounded[kMostGivenElements];
  alignas(64) float given[kMostGivenElements];
  const ElementCodec& codec = CodecOf(dtype);
  codec.encode(master, n, rounded);
  if (std::memcmp(rounded, weight, static_cast<size_t>(n) * codec.element_bytes) == 0) return;
  codec.decode(weight, n, given);
  for (int64_t i = 0; i < n; ++i) {
    if (static_cast<const uint16_t*>(weight)[i] != rounded[i]) master[i] = given[i];
  }
}

}  // namespace spillway::optim
