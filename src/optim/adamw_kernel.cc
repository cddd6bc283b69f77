// SPDX-License-Identifier: Apache-2.0
//
// The AdamW kernel, compiled once for each instruction set by Highway. The end of a run that does
// not fill a vector goes through the same vector code by way of a small buffer, so that it gets the
// same bits. Compiled with -ffp-contract=off: a compiler that fused a multiply with an add would
// break them.

#include "src/optim/adamw_kernel.h"

#include <cmath>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/optim/adamw_kernel.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "src/optim/half_lanes-inl.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::optim::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::ScalableTag<float>;
using FloatLanes = hn::Vec<Floats>;

inline FloatLanes LoadGradient(Floats d, const float* from) { return hn::LoadU(d, from); }
inline FloatLanes LoadGradient(Floats d, const uint16_t* from) { return LoadHalf(d, from); }

inline FloatLanes Scaled(float factor, FloatLanes lanes) {
  return hn::Mul(hn::Set(Floats(), factor), lanes);
}

// A run with its types resolved. `Gradient` is float or uint16_t (F16).
template <typename Gradient>
struct Pointers {
  const Gradient* gradient;
  float* master;
  float* moment1;
  float* moment2;
  uint16_t* weight;
};

// Updates one full vector at element `i`. The factors come by value: by reference, the compiler
// would have to load them again after every store.
template <bool kWeight, typename Gradient>
HWY_INLINE void UpdateVector(const AdamWFactors f, const Pointers<Gradient> at, size_t i) {
  const Floats d;
  const auto g = Scaled(f.gradient_scale, LoadGradient(d, at.gradient + i));
  const auto m =
      hn::Add(Scaled(f.beta1, hn::LoadU(d, at.moment1 + i)), Scaled(f.one_minus_beta1, g));
  const auto v = hn::Add(Scaled(f.beta2, hn::LoadU(d, at.moment2 + i)),
                         Scaled(f.one_minus_beta2, hn::Mul(g, g)));
  const auto denominator =
      hn::Add(hn::Div(hn::Sqrt(v), hn::Set(d, f.bias2_root)), hn::Set(d, f.epsilon));
  const auto decayed = Scaled(f.decay, hn::LoadU(d, at.master + i));
  const auto p = hn::Sub(decayed, Scaled(f.step_size, hn::Div(m, denominator)));
  hn::StoreU(m, d, at.moment1 + i);
  hn::StoreU(v, d, at.moment2 + i);
  hn::StoreU(p, d, at.master + i);
  if constexpr (kWeight) StoreHalf(d, p, at.weight + i);
}

// Updates the last `count` elements, fewer than a vector, at element `i`.
template <bool kWeight, typename Gradient>
void UpdateTail(const AdamWFactors f, const Pointers<Gradient> at, size_t i, size_t count) {
  constexpr size_t kLanes = hn::MaxLanes(Floats());
  Gradient gradient[kLanes] = {};
  float master[kLanes] = {}, moment1[kLanes] = {}, moment2[kLanes] = {};
  uint16_t weight[kLanes] = {};
  const size_t float_bytes = count * sizeof(float);
  std::memcpy(gradient, at.gradient + i, count * sizeof(Gradient));
  std::memcpy(master, at.master + i, float_bytes);
  std::memcpy(moment1, at.moment1 + i, float_bytes);
  std::memcpy(moment2, at.moment2 + i, float_bytes);
  UpdateVector<kWeight>(f, Pointers<Gradient>{gradient, master, moment1, moment2, weight}, 0);
  std::memcpy(at.master + i, master, float_bytes);
  std::memcpy(at.moment1 + i, moment1, float_bytes);
  std::memcpy(at.moment2 + i, moment2, float_bytes);
  if constexpr (kWeight) std::memcpy(at.weight + i, weight, count * sizeof(uint16_t));
}

template <bool kWeight, typename Gradient>
void UpdateRun(const AdamWFactors f, const AdamWRun& run) {
  const Pointers<Gradient> at = {static_cast<const Gradient*>(run.gradient), run.master,
                                 run.moment1, run.moment2, run.weight};
  const auto n = static_cast<size_t>(run.num_elements);
  const size_t lanes = hn::Lanes(Floats());
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) UpdateVector<kWeight>(f, at, i);
  if (i < n) UpdateTail<kWeight>(f, at, i, n - i);
}

}  // namespace

void UpdateAdamWOnTarget(const AdamWFactors& factors, const AdamWRun& run) {
  if (run.gradient_is_f16) {
    run.weight != nullptr ? UpdateRun<true, uint16_t>(factors, run)
                          : UpdateRun<false, uint16_t>(factors, run);
  } else {
    run.weight != nullptr ? UpdateRun<true, float>(factors, run)
                          : UpdateRun<false, float>(factors, run);
  }
}

const char* TargetNameOnTarget() { return hwy::TargetName(HWY_TARGET); }

}  // namespace spillway::optim::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway::optim {

HWY_EXPORT(UpdateAdamWOnTarget);
HWY_EXPORT(TargetNameOnTarget);

AdamWFactors MakeAdamWFactors(const AdamWOptions& options, const AdamWStep& step) {
  const auto t = static_cast<double>(step.step);
  return {
      .gradient_scale = static_cast<float>(step.gradient_scale),
      .decay = static_cast<float>(1.0 - step.learning_rate * options.weight_decay),
      .beta1 = static_cast<float>(options.beta1),
      .one_minus_beta1 = static_cast<float>(1.0 - options.beta1),
      .beta2 = static_cast<float>(options.beta2),
      .one_minus_beta2 = static_cast<float>(1.0 - options.beta2),
      .step_size = static_cast<float>(step.learning_rate / (1.0 - std::pow(options.beta1, t))),
      .bias2_root = static_cast<float>(std::sqrt(1.0 - std::pow(options.beta2, t))),
      .epsilon = static_cast<float>(options.epsilon),
  };
}

void UpdateAdamW(const AdamWFactors& factors, const AdamWRun& run) {
  HWY_DYNAMIC_DISPATCH(UpdateAdamWOnTarget)(factors, run);
}

const char* AdamWInstructionSet() { return HWY_DYNAMIC_DISPATCH(TargetNameOnTarget)(); }

}  // namespace spillway::optim
#endif  // HWY_ONCE
