// SPDX-License-Identifier: Apache-2.0
//
// Rows of 8-bit moments as plainly as they can be written: what the block codec must give bit for
// bit.

#ifndef SPILLWAY_TESTS_OPTIM_BLOCK_REFERENCE_H_
#define SPILLWAY_TESTS_OPTIM_BLOCK_REFERENCE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/optim/block_codec.h"

namespace spillway::optim {

// The code of an element over its scale, by the arithmetic of the vectors in fp32: the decade's
// values lie evenly, so a magnitude's level is a multiple of it and a constant, without the
// fraction.
uint8_t ReferenceCode(CodeMap map, float value);

// One row of `n` elements with its moments, [moments][n], from and to its bytes: scales, then
// codes.
struct ReferenceRow {
  static constexpr size_t kBlock = 256;

  size_t n;
  std::vector<CodeMap> maps;

  size_t blocks() const { return (n + kBlock - 1) / kBlock; }
  size_t size_bytes() const { return maps.size() * (4 * blocks() + n); }

  std::vector<std::vector<float>> Decode(const std::byte* bytes) const;

  void Encode(const std::vector<std::vector<float>>& moments, std::byte* bytes) const;
};

}  // namespace spillway::optim

#endif  // SPILLWAY_TESTS_OPTIM_BLOCK_REFERENCE_H_
