// SPDX-License-Identifier: Apache-2.0
//
// Highway compiles this file once for each instruction set. The compiler's own target_clones would
// be shorter, but it chooses the instruction set before main(), and the thread sanitizer ends the
// process there.

#include "tools/spillway/bench/update/in_place_scale.h"

#include <cstddef>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "tools/spillway/bench/update/in_place_scale.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace spillway::bench_update::HWY_NAMESPACE {

void ScaleInPlaceOnTarget(float* values, size_t n) {
  namespace hn = hwy::HWY_NAMESPACE;
  const hn::ScalableTag<float> d;
  constexpr float kFactor = 1.0000001F;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    hn::StoreU(hn::Mul(hn::LoadU(d, values + i), hn::Set(d, kFactor)), d, values + i);
  }
  for (; i < n; ++i) values[i] *= kFactor;
}

}  // namespace spillway::bench_update::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway::bench_update {

HWY_EXPORT(ScaleInPlaceOnTarget);

void ScaleInPlace(float* values, int64_t n) {
  HWY_DYNAMIC_DISPATCH(ScaleInPlaceOnTarget)(values, static_cast<size_t>(n));
}

}  // namespace spillway::bench_update
#endif  // HWY_ONCE
