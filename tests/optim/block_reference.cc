// SPDX-License-Identifier: Apache-2.0

#include "tests/optim/block_reference.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

namespace spillway::optim {

uint8_t ReferenceCode(CodeMap map, float value) {
  constexpr double kPowers[] = {1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0};
  const bool is_signed = map == CodeMap::kSigned;
  const float x = std::fabs(value) <= 1 ? std::fabs(value) : 1.0F;
  const int zero = is_signed ? 127 : 0;
  int level = 0;
  double before = 0;
  for (int i = 0, first = 1; i < 7; ++i) {
    const int parts = 1 << (is_signed ? i : i + 1);
    const double begin = kPowers[i] * (0.1 + 0.45 / parts);
    const float from = i == 0 && !is_signed ? std::numeric_limits<float>::denorm_min()
                                            : static_cast<float>((before + begin) / 2);
    if (x >= from) {
      const float slope = static_cast<float>(parts / (0.9 * kPowers[i]));
      const float product = x * slope;
      const float sum = product + static_cast<float>(first - parts / 9.0);
      level =
          std::max(first, static_cast<int>(std::min(sum, static_cast<float>(first + parts - 1))));
    }
    before = kPowers[i] * (1 - 0.45 / parts);
    first += parts;
    if (i == 6 && x >= static_cast<float>((before + 1) / 2)) level = first;
  }
  return static_cast<uint8_t>(std::signbit(value) ? zero - std::min(level, zero) : zero + level);
}

std::vector<std::vector<float>> ReferenceRow::Decode(const std::byte* bytes) const {
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

void ReferenceRow::Encode(const std::vector<std::vector<float>>& moments, std::byte* bytes) const {
  for (size_t m = 0; m < maps.size(); ++m) {
    for (size_t block = 0; block < blocks(); ++block) {
      float scale = 0;
      const size_t end = std::min(n, (block + 1) * kBlock);
      for (size_t i = block * kBlock; i < end; ++i)
        scale = std::max(scale, std::fabs(moments[m][i]));
      if (maps[m] == CodeMap::kGrowing && scale > 0 && scale <= 0x1p127F) {
        int exponent = 0;
        const float fraction = std::frexp(scale, &exponent);
        scale = std::ldexp(1.0F, std::max(fraction == 0.5F ? exponent - 1 : exponent, -126));
      }
      std::memcpy(bytes + 4 * (m * blocks() + block), &scale, 4);
      for (size_t i = block * kBlock; i < end; ++i) {
        float value = scale == 0 ? moments[m][i] : moments[m][i] / scale;
        // A second moment that is not zero does not get the code of zero, even if its ratio
        // underflows.
        if (maps[m] != CodeMap::kSigned && moments[m][i] > 0)
          value = std::max(value, std::numeric_limits<float>::denorm_min());
        bytes[4 * maps.size() * blocks() + m * n + i] = std::byte{ReferenceCode(maps[m], value)};
      }
    }
  }
}

void ReferenceRow::CopyMoment(size_t m, const std::byte* from, std::byte* to) const {
  const size_t scales = 4 * m * blocks(), codes = 4 * maps.size() * blocks() + m * n;
  std::memcpy(to + scales, from + scales, 4 * blocks());
  std::memcpy(to + codes, from + codes, n);
}

}  // namespace spillway::optim
