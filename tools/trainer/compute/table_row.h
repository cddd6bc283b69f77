// SPDX-License-Identifier: Apache-2.0

#ifndef SPILLWAY_TOOLS_TRAINER_COMPUTE_TABLE_ROW_H_
#define SPILLWAY_TOOLS_TRAINER_COMPUTE_TABLE_ROW_H_

#include <cstdint>

namespace spillway::trainer {

// A row of a table and the row of x that it belongs to.
struct TableRow {
  int32_t row;
  int32_t position;
};

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_COMPUTE_TABLE_ROW_H_
