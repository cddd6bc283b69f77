// SPDX-License-Identifier: Apache-2.0
//
// Highway compiles these kernels once for each instruction set. Four vectors are summed at a time,
// so that an addition does not wait for the previous one.

#include "src/optim/sum_of_squares.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/optim/sum_of_squares.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace spillway::optim::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using Doubles = hn::CappedTag<double, 8>;
using DoubleLanes = hn::Vec<Doubles>;

HWY_INLINE DoubleLanes PlusSquare(DoubleLanes sum, const float* from) {
  const Doubles d;
  const hn::Rebind<float, Doubles> df;
  const auto value = hn::PromoteTo(d, hn::LoadU(df, from));
  return hn::Add(sum, hn::Mul(value, value));
}

}  // namespace

// Adds the squares of whole rows. A row has one element for each lane.
void AddRowsOnTarget(const float* values, size_t rows, double* lanes) {
  const Doubles d;
  const size_t width = hn::Lanes(d);
  static_assert(kSumLanes % (4 * hn::MaxLanes(Doubles())) == 0);
  for (size_t lane = 0; lane < kSumLanes; lane += 4 * width) {
    double* const to = lanes + lane;
    auto sum0 = hn::LoadU(d, to), sum1 = hn::LoadU(d, to + width);
    auto sum2 = hn::LoadU(d, to + 2 * width), sum3 = hn::LoadU(d, to + 3 * width);
    for (size_t row = 0; row < rows; ++row) {
      const float* const from = values + row * kSumLanes + lane;
      sum0 = PlusSquare(sum0, from);
      sum1 = PlusSquare(sum1, from + width);
      sum2 = PlusSquare(sum2, from + 2 * width);
      sum3 = PlusSquare(sum3, from + 3 * width);
    }
    hn::StoreU(sum0, d, to);
    hn::StoreU(sum1, d, to + width);
    hn::StoreU(sum2, d, to + 2 * width);
    hn::StoreU(sum3, d, to + 3 * width);
  }
}

void AddApartOnTarget(const float* values, size_t n, double* sums) {
  const Doubles d;
  const size_t width = hn::Lanes(d);
  size_t i = 0;
  for (; i + width <= n; i += width)
    hn::StoreU(PlusSquare(hn::LoadU(d, sums + i), values + i), d, sums + i);
  for (; i < n; ++i) {
    const double value = values[i];
    sums[i] += value * value;
  }
}

}  // namespace spillway::optim::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway::optim {
namespace {

HWY_EXPORT(AddRowsOnTarget);
HWY_EXPORT(AddApartOnTarget);

// Adds the squares of fewer elements than a row has.
void AddSome(const float* values, uint64_t n, uint64_t first_lane, SumLanes* sums) {
  for (uint64_t i = 0; i < n; ++i) {
    const double value = values[i];
    sums->lane[first_lane + i] += value * value;
  }
}

}  // namespace

void AddSquares(const float* values, int64_t n, uint64_t first, SumLanes* sums) {
  const auto count = static_cast<uint64_t>(n);
  const uint64_t lane = first % kSumLanes;
  const uint64_t head = lane == 0 ? 0 : std::min(count, kSumLanes - lane);
  AddSome(values, head, lane, sums);
  const uint64_t rows = (count - head) / kSumLanes;
  HWY_DYNAMIC_DISPATCH(AddRowsOnTarget)(values + head, rows, sums->lane);
  const uint64_t done = head + rows * kSumLanes;
  AddSome(values + done, count - done, 0, sums);
}

double Total(const SumLanes& sums) {
  SumLanes pairs = sums;
  for (uint64_t half = kSumLanes / 2; half > 0; half /= 2) {
    for (uint64_t i = 0; i < half; ++i) pairs.lane[i] += pairs.lane[i + half];
  }
  return pairs.lane[0];
}

void AddSquaresApart(const float* values, int64_t n, double* sums) {
  HWY_DYNAMIC_DISPATCH(AddApartOnTarget)(values, static_cast<size_t>(n), sums);
}

}  // namespace spillway::optim
#endif  // HWY_ONCE
