// SPDX-License-Identifier: Apache-2.0
//
// The kernels, compiled once for each instruction set by Highway. The end of a run that does not
// fill a vector goes through the same vector code by way of a small buffer, so that it gets the
// same bits. Compiled with -ffp-contract=off: a compiler that fused a multiply with an add would
// break them.

#include "src/optim/rule_kernels.h"

#include <cmath>
#include <cstring>
#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/optim/rule_kernels.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace spillway::optim::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::ScalableTag<float>;
using FloatLanes = hn::Vec<Floats>;

HWY_INLINE FloatLanes Load(const float* from) { return hn::LoadU(Floats(), from); }
HWY_INLINE void Store(FloatLanes lanes, float* to) { hn::StoreU(lanes, Floats(), to); }
HWY_INLINE FloatLanes Scaled(float factor, FloatLanes lanes) {
  return hn::Mul(hn::Set(Floats(), factor), lanes);
}

// One vector of a run. A moment that the rule lacks is null.
struct VectorAt {
  const float* gradient;
  float* master;
  float* moment1;
  float* moment2;
};

// What each rule does with a vector. The factors come by value: by reference, the compiler would
// have to load them again after every store.

template <bool kDecoupled>
struct Adam {
  static constexpr int kMoments = 2;
  static HWY_INLINE void Apply(const RuleFactors f, const VectorAt at) {
    const Floats d;
    const auto before = Load(at.master);
    auto g = Scaled(f.gradient_scale, Load(at.gradient));
    if constexpr (!kDecoupled) g = hn::Add(g, Scaled(f.coupled_decay, before));
    const auto m = hn::Add(Scaled(f.beta1, Load(at.moment1)), Scaled(f.one_minus_beta1, g));
    const auto v =
        hn::Add(Scaled(f.beta2, Load(at.moment2)), Scaled(f.one_minus_beta2, hn::Mul(g, g)));
    const auto denominator =
        hn::Add(hn::Div(hn::Sqrt(v), hn::Set(d, f.bias2_root)), hn::Set(d, f.epsilon));
    const auto decayed = kDecoupled ? Scaled(f.decay, before) : before;
    Store(m, at.moment1);
    Store(v, at.moment2);
    Store(hn::Sub(decayed, Scaled(f.step_size, hn::Div(m, denominator))), at.master);
  }
};

template <bool kMomentum>
struct Sgd {
  static constexpr int kMoments = kMomentum ? 1 : 0;
  static HWY_INLINE void Apply(const RuleFactors f, const VectorAt at) {
    const auto before = Load(at.master);
    auto step =
        hn::Add(Scaled(f.gradient_scale, Load(at.gradient)), Scaled(f.coupled_decay, before));
    if constexpr (kMomentum) {
      step = hn::Add(Scaled(f.beta1, Load(at.moment1)), step);
      Store(step, at.moment1);
    }
    Store(hn::Sub(before, Scaled(f.step_size, step)), at.master);
  }
};

template <bool kMomentum>
struct RmsProp {
  static constexpr int kMoments = kMomentum ? 2 : 1;
  static HWY_INLINE void Apply(const RuleFactors f, const VectorAt at) {
    const auto before = Load(at.master);
    const auto g =
        hn::Add(Scaled(f.gradient_scale, Load(at.gradient)), Scaled(f.coupled_decay, before));
    const auto v =
        hn::Add(Scaled(f.beta2, Load(at.moment1)), Scaled(f.one_minus_beta2, hn::Mul(g, g)));
    Store(v, at.moment1);
    auto step = hn::Div(g, hn::Add(hn::Sqrt(v), hn::Set(Floats(), f.epsilon)));
    if constexpr (kMomentum) {
      step = hn::Add(Scaled(f.beta1, Load(at.moment2)), step);
      Store(step, at.moment2);
    }
    Store(hn::Sub(before, Scaled(f.step_size, step)), at.master);
  }
};

struct Lion {
  static constexpr int kMoments = 1;
  static HWY_INLINE void Apply(const RuleFactors f, const VectorAt at) {
    const Floats d;
    const auto zero = hn::Zero(d);
    const auto g = Scaled(f.gradient_scale, Load(at.gradient));
    const auto m = Load(at.moment1);
    const auto u = hn::Add(Scaled(f.beta1, m), Scaled(f.one_minus_beta1, g));
    const auto down = hn::IfThenElseZero(hn::Lt(u, zero), hn::Set(d, -f.step_size));
    const auto step = hn::IfThenElse(hn::Gt(u, zero), hn::Set(d, f.step_size), down);
    Store(hn::Add(Scaled(f.beta2, m), Scaled(f.one_minus_beta2, g)), at.moment1);
    Store(hn::Sub(Scaled(f.decay, Load(at.master)), step), at.master);
  }
};

// Element `i` of a run. Nothing may be added to the null of a moment that is not there.
template <class R>
HWY_INLINE VectorAt At(const RuleRun& run, size_t i) {
  VectorAt at = {run.gradient + i, run.master + i, nullptr, nullptr};
  if constexpr (R::kMoments > 0) at.moment1 = run.moments[0] + i;
  if constexpr (R::kMoments > 1) at.moment2 = run.moments[1] + i;
  return at;
}

// Updates the last `count` elements, fewer than a vector, at element `i`.
template <class R>
void UpdateTail(const RuleFactors f, const RuleRun& run, size_t i, size_t count) {
  constexpr size_t kLanes = hn::MaxLanes(Floats());
  float gradient[kLanes] = {}, master[kLanes] = {}, moment1[kLanes] = {}, moment2[kLanes] = {};
  const size_t bytes = count * sizeof(float);
  const VectorAt at = At<R>(run, i);
  std::memcpy(gradient, at.gradient, bytes);
  std::memcpy(master, at.master, bytes);
  if constexpr (R::kMoments > 0) std::memcpy(moment1, at.moment1, bytes);
  if constexpr (R::kMoments > 1) std::memcpy(moment2, at.moment2, bytes);
  R::Apply(f, {gradient, master, moment1, moment2});
  std::memcpy(at.master, master, bytes);
  if constexpr (R::kMoments > 0) std::memcpy(at.moment1, moment1, bytes);
  if constexpr (R::kMoments > 1) std::memcpy(at.moment2, moment2, bytes);
}

template <class R>
void UpdateRun(const RuleFactors f, const RuleRun run) {
  const auto n = static_cast<size_t>(run.num_elements);
  const size_t lanes = hn::Lanes(Floats());
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) R::Apply(f, At<R>(run, i));
  if (i < n) UpdateTail<R>(f, run, i, n - i);
}

}  // namespace

void UpdateElementsOnTarget(const RuleFactors& f, const RuleRun& run) {
  switch (f.kind) {
    case RuleKind::kAdamW: return UpdateRun<Adam<true>>(f, run);
    case RuleKind::kAdam: return UpdateRun<Adam<false>>(f, run);
    case RuleKind::kSgd:
      return f.has_momentum ? UpdateRun<Sgd<true>>(f, run) : UpdateRun<Sgd<false>>(f, run);
    case RuleKind::kRmsProp:
      return f.has_momentum ? UpdateRun<RmsProp<true>>(f, run) : UpdateRun<RmsProp<false>>(f, run);
    case RuleKind::kLion: return UpdateRun<Lion>(f, run);
  }
}

const char* TargetNameOnTarget() { return hwy::TargetName(HWY_TARGET); }

}  // namespace spillway::optim::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway::optim {
namespace {

HWY_EXPORT(UpdateElementsOnTarget);
HWY_EXPORT(TargetNameOnTarget);

// A number past the largest float is infinite.
float ToFloat(double value) {
  constexpr double kMost = std::numeric_limits<float>::max();
  if (std::fabs(value) > kMost) {
    return std::copysign(std::numeric_limits<float>::infinity(), value > 0 ? 1.0F : -1.0F);
  }
  return static_cast<float>(value);
}

}  // namespace

RuleFactors MakeFactors(const Rule& rule, const Update& update) {
  const double lr = update.learning_rate;
  const bool is_adam = rule.kind == RuleKind::kAdamW || rule.kind == RuleKind::kAdam;
  RuleFactors f = {.kind = rule.kind,
                   .has_momentum = rule.momentum != 0,
                   .gradient_scale = ToFloat(update.gradient_scale),
                   .decay = ToFloat(1.0 - lr * update.weight_decay),
                   .coupled_decay = ToFloat(update.weight_decay),
                   .beta1 = ToFloat(rule.beta1),
                   .one_minus_beta1 = ToFloat(1.0 - rule.beta1),
                   .beta2 = ToFloat(rule.beta2),
                   .one_minus_beta2 = ToFloat(1.0 - rule.beta2),
                   .step_size = ToFloat(lr),
                   .epsilon = ToFloat(rule.epsilon)};
  if (rule.kind == RuleKind::kSgd || rule.kind == RuleKind::kRmsProp) {
    f.beta1 = ToFloat(rule.momentum);
    f.beta2 = ToFloat(rule.alpha);
    f.one_minus_beta2 = ToFloat(1.0 - rule.alpha);
  }
  if (is_adam) {
    const auto t = static_cast<double>(update.step);
    f.step_size = ToFloat(lr / (1.0 - std::pow(rule.beta1, t)));
    f.bias2_root = ToFloat(std::sqrt(1.0 - std::pow(rule.beta2, t)));
  }
  return f;
}

void UpdateElements(const RuleFactors& factors, const RuleRun& run) {
  HWY_DYNAMIC_DISPATCH(UpdateElementsOnTarget)(factors, run);
}

const char* InstructionSet() { return HWY_DYNAMIC_DISPATCH(TargetNameOnTarget)(); }

}  // namespace spillway::optim
#endif  // HWY_ONCE
