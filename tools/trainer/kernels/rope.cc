// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/kernels/rope.h"

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tools/trainer/kernels/rope.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "tools/trainer/kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::trainer {
namespace HWY_NAMESPACE {
namespace {

// Rotates one row in place. `direction` is 1 in forward and -1 in backward.
void Rotate(const float* cosines, const float* sines, float direction, int64_t heads,
            int64_t head_stride, int64_t half, float* row) {
  const FloatTag d;
  const FloatVector sign = hn::Set(d, direction);
  for (int64_t h = 0; h < heads; ++h, row += head_stride) {
    ForVectors(static_cast<size_t>(half), [&](size_t j, size_t count) HWY_ATTR {
      const FloatVector c = LoadUpTo(d, cosines + j, count);
      const FloatVector s = hn::Mul(LoadUpTo(d, sines + j, count), sign);
      const FloatVector low = LoadUpTo(d, row + j, count);
      const FloatVector high = LoadUpTo(d, row + half + j, count);
      StoreUpTo(hn::NegMulAdd(high, s, hn::Mul(low, c)), d, row + j, count);
      StoreUpTo(hn::MulAdd(low, s, hn::Mul(high, c)), d, row + half + j, count);
    });
  }
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace spillway::trainer
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway::trainer {
namespace {

HWY_EXPORT(Rotate);

void RotateRows(const RopeTables& tables, float direction, int64_t window_length, int64_t heads,
                int64_t head_dim, int64_t begin, int64_t end, const HeadRows<float>& x) {
  const int64_t half = head_dim / 2;
  for (int64_t r = begin; r < end; ++r) {
    const int64_t position = r % window_length;
    HWY_DYNAMIC_DISPATCH(Rotate)
    (tables.cosines + position * half, tables.sines + position * half, direction, heads,
     x.head_stride, half, x.At(r, 0));
  }
}

}  // namespace

void FillRopeTables(std::span<const float> frequencies, int64_t length, float* cosines,
                    float* sines) {
  const auto half = static_cast<int64_t>(frequencies.size());
  for (int64_t j = 0; j < half; ++j) {
    for (int64_t position = 0; position < length; ++position) {
      const float angle = static_cast<float>(position) * frequencies[static_cast<size_t>(j)];
      cosines[position * half + j] = static_cast<float>(std::cos(static_cast<double>(angle)));
      sines[position * half + j] = static_cast<float>(std::sin(static_cast<double>(angle)));
    }
  }
}

void RopeForward(const RopeTables& tables, int64_t window_length, int64_t heads, int64_t head_dim,
                 int64_t begin, int64_t end, const HeadRows<float>& x) {
  RotateRows(tables, 1.0f, window_length, heads, head_dim, begin, end, x);
}

void RopeBackward(const RopeTables& tables, int64_t window_length, int64_t heads, int64_t head_dim,
                  int64_t begin, int64_t end, const HeadRows<float>& x) {
  RotateRows(tables, -1.0f, window_length, heads, head_dim, begin, end, x);
}

}  // namespace spillway::trainer
#endif  // HWY_ONCE
