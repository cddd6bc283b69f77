// SPDX-License-Identifier: Apache-2.0
//
// Rows of 8-bit moments as plainly as they can be written: what the block codec must give bit for
// bit.

#ifndef SPILLWAY_TESTS_OPTIM_BLOCK_REFERENCE_H_
#define SPILLWAY_TESTS_OPTIM_BLOCK_REFERENCE_H_

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <vector>

#include "src/optim/block_codec.h"

namespace spillway::optim {

// The nearest of the map's values, found by trying all: of a magnitude on the values that are not
// negative, and then on its side. What is not zero is not zero on the unsigned map.
inline uint8_t NearestCode(CodeMap map, float value) {
  const std::array<float, 256>& values = CodeValues(map);
  const size_t zero = map == CodeMap::kSigned ? 127 : 0;
  const float magnitude = std::fabs(value);
  size_t level = 0;
  for (size_t next = 1; zero + next < 256; ++next) {
    const double below = values[zero + next - 1], above = values[zero + next];
    if (magnitude >= static_cast<float>((below + above) / 2)) level = next;
  }
  if (map == CodeMap::kUnsigned) {
    if (std::signbit(value)) return 0;
    return static_cast<uint8_t>(value > 0 ? std::max<size_t>(level, 1) : 0);
  }
  return static_cast<uint8_t>(std::signbit(value) ? zero - std::min(level, zero) : zero + level);
}

// One row of `n` elements with its moments, [moments][n], from and to its bytes: scales, then
// codes.
struct ReferenceRow {
  static constexpr size_t kBlock = 256;

  size_t n;
  std::vector<CodeMap> maps;

  size_t blocks() const { return (n + kBlock - 1) / kBlock; }
  size_t size_bytes() const { return maps.size() * (4 * blocks() + n); }

  std::vector<std::vector<float>> Decode(const std::byte* bytes) const {
    std::vector<std::vector<float>> moments(maps.size(), std::vector<float>(n));
    for (size_t m = 0; m < maps.size(); ++m) {
      for (size_t i = 0; i < n; ++i) {
        float scale = 0;
        std::memcpy(&scale, bytes + 4 * (m * blocks() + i / kBlock), 4);
        const auto code = static_cast<size_t>(bytes[4 * maps.size() * blocks() + m * n + i]);
        moments[m][i] = scale * CodeValues(maps[m])[code];
      }
    }
    return moments;
  }

  void Encode(const std::vector<std::vector<float>>& moments, std::byte* bytes) const {
    for (size_t m = 0; m < maps.size(); ++m) {
      for (size_t block = 0; block < blocks(); ++block) {
        float scale = 0;
        const size_t end = std::min(n, (block + 1) * kBlock);
        for (size_t i = block * kBlock; i < end; ++i)
          scale = std::max(scale, std::fabs(moments[m][i]));
        std::memcpy(bytes + 4 * (m * blocks() + block), &scale, 4);
        for (size_t i = block * kBlock; i < end; ++i) {
          const float value = scale == 0 ? moments[m][i] : moments[m][i] / scale;
          bytes[4 * maps.size() * blocks() + m * n + i] = std::byte{NearestCode(maps[m], value)};
        }
      }
    }
  }
};

}  // namespace spillway::optim

#endif  // SPILLWAY_TESTS_OPTIM_BLOCK_REFERENCE_H_
