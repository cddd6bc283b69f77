// SPDX-License-Identifier: Apache-2.0
//
// Rotary position embedding, against double precision.

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "tests/simt/machine.h"
#include "tools/trainer/compute/gpu/rope.h"

namespace spillway::trainer::gpu {
namespace {

struct RopeSizes {
  int64_t rows, length, heads, head_dim, head_stride;
};

class ComputeRope : public EachMachine {
 protected:
  // Rotates heads that lie between other columns, which must stay.
  void Check(DType type, const RopeSizes& sizes, bool backward) {
    const auto& [rows, length, heads, head_dim, head_stride] = sizes;
    SCOPED_TRACE(testing::Message() << Name(type) << ", " << rows << " rows, " << heads
                                    << " heads of " << head_dim << (backward ? ", backward" : ""));
    const int64_t half = head_dim / 2;
    const int64_t columns = (heads - 1) * head_stride + head_dim;
    Values cosines, sines;
    for (const float angle : Random(length * half, 3)) {
      cosines.push_back(std::cos(angle));
      sines.push_back(std::sin(angle));
    }
    const Values before = Rounded(type, Random(rows * columns));
    Exact after(before.begin(), before.end());
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t pair = 0; pair < heads * half; ++pair) {
        const int64_t j = pair % half;
        const auto low = static_cast<size_t>(row * columns + pair / half * head_stride + j);
        const auto high = low + static_cast<size_t>(half);
        const auto at = static_cast<size_t>(row % length * half + j);
        const double sine = backward ? -static_cast<double>(sines[at]) : sines[at];
        after[low] = static_cast<double>(before[low]) * cosines[at] - before[high] * sine;
        after[high] = static_cast<double>(before[high]) * cosines[at] + before[low] * sine;
      }
    }
    const View x = Put(type, rows, columns, before, /*padding=*/7);
    Launch(Rope{MatrixOf(Put(DType::kF32, length, half, cosines)),
                MatrixOf(Put(DType::kF32, length, half, sines)), length, head_dim, backward,
                MatrixOf(x), heads, head_stride});
    ExpectNear(x, after, 5e-7);
  }
};

TEST_P(ComputeRope, RotatesEachHeadByItsTokensPosition) {
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (const bool backward : {false, true}) {
      Check(type, {.rows = 11, .length = 5, .heads = 3, .head_dim = 22, .head_stride = 31},
            backward);
    }
  }
  Check(DType::kF32, {.rows = 1, .length = 1, .heads = 1, .head_dim = 2, .head_stride = 2}, false);
  Check(DType::kF32, {.rows = 3, .length = 7, .heads = 9, .head_dim = 64, .head_stride = 64}, true);
}

TEST_P(ComputeRope, NaNShowsInItsPairAlone) {
  Values values(2 * 8, 1.0f);
  values[9] = std::nanf("");
  const View x = Put(DType::kBF16, 2, 8, values);
  Launch(Rope{MatrixOf(Put(DType::kF32, 2, 2, Values(4, 0.0f))),
              MatrixOf(Put(DType::kF32, 2, 2, Values(4, 1.0f))), 2, 4, false, MatrixOf(x), 2, 4});
  Values expected = {-1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1};
  expected[9] = expected[11] = std::nanf("");
  ExpectSame(x, expected);
}

SPILLWAY_ON_EACH_MACHINE(ComputeRope);

}  // namespace
}  // namespace spillway::trainer::gpu
