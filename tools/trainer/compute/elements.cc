// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/compute/elements.h"

#include <cstddef>
#include <cstdint>
#include <span>

#include "tools/trainer/kernels/convert.h"

namespace spillway::trainer {

void ReadElements(DType type, const std::byte* from, std::span<float> to) {
  ToFloats(type, from, static_cast<int64_t>(to.size()), to.data());
}

void WriteElements(DType type, std::span<const float> from, std::byte* to) {
  FromFloats(type, from.data(), static_cast<int64_t>(from.size()), to);
}

}  // namespace spillway::trainer
