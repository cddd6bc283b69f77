// SPDX-License-Identifier: Apache-2.0
//
// A matrix somewhere in memory: in scratch, or in a leased tile. Only a Compute reads or writes the
// elements; whoever holds a view may compute with its sizes, and cut it into parts.

#ifndef SPILLWAY_TOOLS_TRAINER_COMPUTE_VIEW_H_
#define SPILLWAY_TOOLS_TRAINER_COMPUTE_VIEW_H_

#include <cstddef>
#include <cstdint>

#include "spillway/types.h"

namespace spillway::trainer {

// Row-major. In a dry run `data` is null.
struct View {
  std::byte* data = nullptr;
  DType stored = DType::kF32;   // the type of the elements in memory
  DType rounded = DType::kF32;  // an operation that writes the view rounds each value to this type
  int64_t rows = 0;
  int64_t columns = 0;
  int64_t stride = 0;  // elements from row to row

  int64_t elements() const { return rows * columns; }
  bool is_contiguous() const { return stride == columns || rows == 1; }

  View Rows(int64_t first, int64_t count) const {
    View part = *this;
    part.rows = count;
    return part.Skip(first * stride);
  }
  View Columns(int64_t first, int64_t count) const {
    View part = *this;
    part.columns = count;
    return part.Skip(first);
  }
  // The same elements in rows of another length. REQUIRES: is_contiguous.
  View Reshaped(int64_t new_rows, int64_t new_columns) const {
    View same = *this;
    same.rows = new_rows;
    same.columns = same.stride = new_columns;
    return same;
  }
  View Rounded(DType type) const {
    View same = *this;
    same.rounded = type;
    return same;
  }

 private:
  View Skip(int64_t elements) const {
    View part = *this;
    if (data != nullptr) part.data += static_cast<uint64_t>(elements) * ElementBytes(stored);
    return part;
  }
};

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_COMPUTE_VIEW_H_
