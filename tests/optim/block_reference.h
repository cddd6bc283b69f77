// SPDX-License-Identifier: Apache-2.0
//
// A simple reference for rows of 8-bit moments. The block codec must give the same bits.

#ifndef SPILLWAY_TESTS_OPTIM_BLOCK_REFERENCE_H_
#define SPILLWAY_TESTS_OPTIM_BLOCK_REFERENCE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/optim/block_codec.h"

namespace spillway::optim {

// Returns the code of `value`, an element divided by its scale, with the vector kernels' arithmetic
// in fp32. The values of a decade are evenly spaced, so a magnitude's level is the magnitude times
// a factor, plus a constant, without the fraction.
uint8_t ReferenceCode(CodeMap map, float value);

// Decodes and encodes one row of `n` elements. Its moments are [moments][n]; its bytes are the
// scales, then the codes.
struct ReferenceRow {
  static constexpr size_t kBlock = 256;

  size_t n;
  std::vector<CodeMap> maps;

  size_t blocks() const { return (n + kBlock - 1) / kBlock; }
  size_t size_bytes() const { return maps.size() * (4 * blocks() + n); }

  std::vector<std::vector<float>> Decode(const std::byte* bytes) const;

  void Encode(const std::vector<std::vector<float>>& moments, std::byte* bytes) const;

  // Copies the bytes of one moment from a row to another.
  void CopyMoment(size_t m, const std::byte* from, std::byte* to) const;
};

}  // namespace spillway::optim

#endif  // SPILLWAY_TESTS_OPTIM_BLOCK_REFERENCE_H_
