// SPDX-License-Identifier: Apache-2.0
//
// Rows of a table and their gradients. Each has one right result in bits.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/simt/machine.h"
#include "tools/trainer/compute/gpu/lookups.h"

namespace spillway::trainer::gpu {
namespace {

constexpr int64_t kFirstRow = 40;

class ComputeLookups : public EachMachine {};

TEST_P(ComputeLookups, RowsAreCopiedOrAdded) {
  const int64_t tokens = 9, rows = 5, width = 263;
  const std::vector<TableRow> entries = {{40, 3}, {40, 8}, {42, 0}, {44, 5}};
  for (const DType of_table : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const DType of_x : {DType::kF32, DType::kF16, DType::kBF16}) {
      for (const Into into : {Into::kOverwrite, Into::kAdd}) {
        Values table = Rounded(of_table, Random(rows * width));
        table[3] = std::nanf("");
        const Values before = Rounded(of_x, Random(tokens * width));
        Values after = before;
        for (const TableRow& entry : entries) {
          for (int64_t i = 0; i < width; ++i) {
            float& value = after[static_cast<size_t>(entry.position * width + i)];
            const float row = table[static_cast<size_t>((entry.row - kFirstRow) * width + i)];
            value = Rounded(of_x, into == Into::kAdd ? value + row : row);
          }
        }
        const View x = Put(of_x, tokens, width, before, /*padding=*/1);
        Launch(Lookup{MatrixOf(Put(of_table, rows, width, table)), kFirstRow, Put(entries),
                      static_cast<int64_t>(entries.size()), into, MatrixOf(x)});
        ExpectSame(x, after);
      }
    }
  }
}

TEST_P(ComputeLookups, GradientsOfARowAreSummedInOrderAndRoundedOnce) {
  const int64_t tokens = 61, rows = 7, width = 259;
  for (const DType of_dx : {DType::kF32, DType::kBF16}) {
    for (const DType of_tile : {DType::kF32, DType::kF16, DType::kBF16}) {
      std::vector<TableRow> entries;  // several, one, and none of a row
      for (int32_t position = 0; position < 50; ++position) entries.push_back({41, position});
      entries.push_back({42, 7});
      for (int32_t position = 3; position < 60; position += 8) entries.push_back({46, position});
      Values dx = Rounded(of_dx, Random(tokens * width));
      dx[7 * width + 5] = std::nanf("");
      const Values before = Rounded(of_tile, Random(rows * width));
      Values after = before;
      for (int64_t i = 0; i < width; ++i) {
        float sum = 0;
        for (size_t entry = 0; entry < entries.size(); ++entry) {
          const auto [row, position] = entries[entry];
          const float term = dx[static_cast<size_t>(position * width + i)];
          sum = entry > 0 && entries[entry - 1].row == row ? sum + term : term;
          if (entry + 1 < entries.size() && entries[entry + 1].row == row) continue;
          float& value = after[static_cast<size_t>((row - kFirstRow) * width + i)];
          value = Rounded(of_tile, value + sum);
        }
      }
      const View tile = Put(of_tile, rows, width, before);
      Launch(LookupGradient{MatrixOf(Put(of_dx, tokens, width, dx, /*padding=*/1)), Put(entries),
                            static_cast<int64_t>(entries.size()), kFirstRow, MatrixOf(tile)});
      ExpectSame(tile, after);
    }
  }
}

TEST_P(ComputeLookups, NoEntriesChangeNothing) {
  const View tile = Put(DType::kF32, 1, 3, {1, 2, 3});
  Launch(LookupGradient{MatrixOf(tile), nullptr, 0, 0, MatrixOf(tile)});
  ExpectSame(tile, {1, 2, 3});
}

SPILLWAY_ON_EACH_MACHINE(ComputeLookups);

}  // namespace
}  // namespace spillway::trainer::gpu
