// SPDX-License-Identifier: Apache-2.0
//
// The layout of an encoded state. A format whose codes share scales keeps all moments of a
// parameter in one tensor of bytes, with one row for each row of the weight, so that a tile is one
// contiguous read. FORMATS.md shows the layout.

#ifndef SPILLWAY_OPTIM_STATE_FORMAT_H_
#define SPILLWAY_OPTIM_STATE_FORMAT_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "spillway/optimizer.h"

namespace spillway::optim {

// Whether a format keeps its moments in rows of codes with scales, instead of one tensor for each.
constexpr bool IsEncoded(StateFormat format) {
  return format == StateFormat::k8Bit || format == StateFormat::kCompact;
}

// Whether the master weight is the 16-bit weight with a residual in the state, instead of a tensor.
constexpr bool IsSplit(StateFormat format) { return format == StateFormat::kCompact; }

// Returns the format of a parameter's state. Without moments there is nothing to encode, and a
// separate master weight is the same in every format.
constexpr StateFormat RestingFormat(StateFormat format, size_t num_moments) {
  return num_moments == 0 && !IsSplit(format) ? StateFormat::kF32 : format;
}

// Elements that share a scale: runs of a row, the last of which may be shorter.
inline constexpr uint64_t kBlockElements = 256;  // of 8-bit state
inline constexpr uint64_t kGroupElements = 64;   // of compact state

// A row of a parameter's encoded state: the residuals, if the format has them; the scales of the
// first moment's blocks, then of the second's and so on; then the codes of the first moment, then
// of the second's and so on. Residuals and codes are a byte each. Residuals come first, so that
// code that reads master weights does not depend on the rule.
struct EncodedRow {
  uint64_t num_elements = 0;
  uint64_t num_moments = 0;
  uint64_t block_elements = kBlockElements;
  uint64_t scale_bytes = sizeof(float);
  bool has_residuals = false;

  uint64_t num_blocks() const { return (num_elements + block_elements - 1) / block_elements; }
  uint64_t residual_offset(uint64_t element) const { return element; }
  uint64_t scale_offset(uint64_t moment, uint64_t block) const {
    return (has_residuals ? num_elements : 0) + (moment * num_blocks() + block) * scale_bytes;
  }
  uint64_t code_offset(uint64_t moment, uint64_t element) const {
    return scale_offset(num_moments, 0) + moment * num_elements + element;
  }
  uint64_t size_bytes() const { return code_offset(num_moments, 0); }
};

// Returns the elements of a row of the state: those of a row of the weight, or all of a vector or a
// scalar. REQUIRES: every dimension is at least 1.
inline uint64_t EncodedRowElements(const std::vector<int64_t>& shape) {
  uint64_t elements = 1;
  for (size_t i = shape.size() > 1 ? 1 : 0; i < shape.size(); ++i)
    elements *= static_cast<uint64_t>(shape[i]);
  return elements;
}

// Returns the layout of a row. REQUIRES: IsEncoded(format), and every dimension is at least 1.
inline EncodedRow RowOf(StateFormat format, const std::vector<int64_t>& shape,
                        uint64_t num_moments) {
  const EncodedRow row = {.num_elements = EncodedRowElements(shape), .num_moments = num_moments};
  if (!IsSplit(format)) return row;
  return {.num_elements = row.num_elements,
          .num_moments = num_moments,
          .block_elements = kGroupElements,
          .scale_bytes = sizeof(uint16_t),
          .has_residuals = true};
}

}  // namespace spillway::optim

#endif  // SPILLWAY_OPTIM_STATE_FORMAT_H_
