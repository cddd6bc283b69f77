// SPDX-License-Identifier: Apache-2.0
//
// A simple reference for compact state. The codecs must give the same bits.

#ifndef SPILLWAY_TESTS_OPTIM_COMPACT_REFERENCE_H_
#define SPILLWAY_TESTS_OPTIM_COMPACT_REFERENCE_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "spillway/types.h"
#include "src/optim/block_codec.h"

namespace spillway::optim {

struct SplitMaster {
  uint16_t weight = 0;
  int8_t residual = 0;
};

float ReferenceJoin(DType dtype, SplitMaster split);

SplitMaster ReferenceSplit(DType dtype, float master, uint32_t word);

// Returns the scale of a group: its largest magnitude as bf16, rounded up, of a growing moment to a
// power of two, at least 2^-90, and finite if the largest magnitude is. The scale of zeros is 0.
uint16_t ReferenceScale(CodeMap map, const float* values, size_t n);

float FloatOfScaleBits(uint16_t scale);

float ReferenceGroupValue(CodeMap map, uint16_t scale, uint8_t code);

uint8_t ReferenceGroupCode(CodeMap map, uint16_t scale, float value, uint32_t word);

// One row of `n` elements. Its bytes are residuals, then scales, then codes.
struct CompactRow {
  static constexpr size_t kGroup = 64;

  size_t n;
  std::vector<CodeMap> maps;

  size_t groups() const { return (n + kGroup - 1) / kGroup; }
  size_t scale_at(size_t m, size_t i) const { return n + 2 * (m * groups() + i / kGroup); }
  size_t code_at(size_t m, size_t i) const { return n + 2 * maps.size() * groups() + m * n + i; }
  size_t size_bytes() const { return code_at(maps.size(), 0); }

  float DecodeMoment(const std::byte* row, size_t m, size_t i) const;

  // `first` is the index of the row's first element in the tensor.
  void EncodeMoment(const std::vector<float>& values, uint64_t key, size_t first, size_t m,
                    std::byte* row) const;
};

}  // namespace spillway::optim

#endif  // SPILLWAY_TESTS_OPTIM_COMPACT_REFERENCE_H_
