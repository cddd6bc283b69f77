// SPDX-License-Identifier: Apache-2.0
//
// The kernels of rule_kernels.h, compiled once for each instruction set by Highway. The elements at
// the end of a run that do not fill a vector go through the same vector code in a small buffer, so
// that they get the same bits. Compiled with -ffp-contract=off: a compiler that fused a multiply
// with an add would change the bits.

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
  float* moment3;
};

// Sets of moments, a bit for each place in RuleRun::moments.
constexpr unsigned kNoMoment = 0, kFirst = 1, kSecond = 2, kThird = 4;

// The update of one vector by each rule. The factors are passed by value: with a reference, the
// compiler would have to load them again after every store.

template <bool kDecoupled, bool kAmsgrad>
struct Adam {
  static constexpr unsigned kMoments = kFirst | kSecond | (kAmsgrad ? kThird : 0);
  static HWY_INLINE void Apply(const RuleFactors f, const VectorAt at) {
    const Floats d;
    const auto before = Load(at.master);
    auto g = Scaled(f.gradient_scale, Load(at.gradient));
    if constexpr (!kDecoupled) g = hn::Add(g, Scaled(f.coupled_decay, before));
    const auto m = hn::Add(Scaled(f.beta1, Load(at.moment1)), Scaled(f.one_minus_beta1, g));
    const auto v =
        hn::Add(Scaled(f.beta2, Load(at.moment2)), Scaled(f.one_minus_beta2, hn::Mul(g, g)));
    auto largest = v;
    if constexpr (kAmsgrad) {
      const auto before_it = Load(at.moment3);
      // Max may drop a NaN.
      const auto grows = hn::Or(hn::Lt(before_it, v), hn::IsNaN(v));
      largest = hn::IfThenElse(grows, v, before_it);
      Store(largest, at.moment3);
    }
    const auto denominator =
        hn::Add(hn::Div(hn::Sqrt(largest), hn::Set(d, f.bias2_root)), hn::Set(d, f.epsilon));
    const auto decayed = kDecoupled ? Scaled(f.decay, before) : before;
    Store(m, at.moment1);
    Store(v, at.moment2);
    Store(hn::Sub(decayed, Scaled(f.step_size, hn::Div(m, denominator))), at.master);
  }
};

template <bool kMomentum, bool kNesterov>
struct Sgd {
  static constexpr unsigned kMoments = kMomentum ? kFirst : kNoMoment;
  static HWY_INLINE void Apply(const RuleFactors f, const VectorAt at) {
    const auto before = Load(at.master);
    auto step =
        hn::Add(Scaled(f.gradient_scale, Load(at.gradient)), Scaled(f.coupled_decay, before));
    if constexpr (kMomentum) {
      // Without dampening the share is 1, which changes no bit.
      const auto m = hn::Add(Scaled(f.beta1, Load(at.moment1)), Scaled(f.one_minus_beta1, step));
      Store(m, at.moment1);
      step = kNesterov ? hn::Add(step, Scaled(f.beta1, m)) : m;
    }
    Store(hn::Sub(before, Scaled(f.step_size, step)), at.master);
  }
};

template <bool kMomentum, bool kCentered>
struct RmsProp {
  static constexpr unsigned kMoments =
      kFirst | (kMomentum ? kSecond : 0) | (kCentered ? kThird : 0);
  static HWY_INLINE void Apply(const RuleFactors f, const VectorAt at) {
    const auto before = Load(at.master);
    const auto g =
        hn::Add(Scaled(f.gradient_scale, Load(at.gradient)), Scaled(f.coupled_decay, before));
    auto deviation = g;
    if constexpr (kCentered) {
      const auto average = Load(at.moment3);
      deviation = hn::Sub(g, average);
      Store(hn::Add(Scaled(f.beta2, average), Scaled(f.one_minus_beta2, g)), at.moment3);
    }
    const float share = kCentered ? f.variance_share : f.one_minus_beta2;
    const auto v =
        hn::Add(Scaled(f.beta2, Load(at.moment1)), Scaled(share, hn::Mul(deviation, deviation)));
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
  static constexpr unsigned kMoments = kFirst;
  static HWY_INLINE void Apply(const RuleFactors f, const VectorAt at) {
    const Floats d;
    const auto zero = hn::Zero(d);
    const auto g = Scaled(f.gradient_scale, Load(at.gradient));
    const auto m = Load(at.moment1);
    const auto u = hn::Add(Scaled(f.beta1, m), Scaled(f.one_minus_beta1, g));
    const auto down = hn::IfThenElseZero(hn::Lt(u, zero), hn::Set(d, -f.step_size));
    const auto sign = hn::IfThenElse(hn::Gt(u, zero), hn::Set(d, f.step_size), down);
    // Both comparisons are false for NaN, which must show: the weight would never change again.
    const auto step = hn::IfThenElse(hn::IsNaN(u), u, sign);
    Store(hn::Add(Scaled(f.beta2, m), Scaled(f.one_minus_beta2, g)), at.moment1);
    Store(hn::Sub(Scaled(f.decay, Load(at.master)), step), at.master);
  }
};

struct Lamb {
  static constexpr unsigned kMoments = kFirst | kSecond;
  static constexpr unsigned kDirectionMoments = kMoments;
  struct Step {
    FloatLanes m, v, u;
  };
  static HWY_INLINE Step StepOf(const RuleFactors f, const VectorAt at) {
    const Floats d;
    const auto g = Scaled(f.gradient_scale, Load(at.gradient));
    const auto m = hn::Add(Scaled(f.beta1, Load(at.moment1)), Scaled(f.one_minus_beta1, g));
    const auto v =
        hn::Add(Scaled(f.beta2, Load(at.moment2)), Scaled(f.one_minus_beta2, hn::Mul(g, g)));
    const auto denominator =
        hn::Add(hn::Div(hn::Sqrt(v), hn::Set(d, f.bias2_root)), hn::Set(d, f.epsilon));
    const auto corrected = Scaled(f.moment_scale, hn::Div(m, denominator));
    return {m, v, hn::Add(corrected, Scaled(f.coupled_decay, Load(at.master)))};
  }
  static HWY_INLINE FloatLanes Direction(const RuleFactors f, const VectorAt at) {
    return StepOf(f, at).u;
  }
  static HWY_INLINE void Apply(const RuleFactors f, const VectorAt at) {
    const Step step = StepOf(f, at);
    Store(step.m, at.moment1);
    Store(step.v, at.moment2);
    Store(hn::Sub(Load(at.master), Scaled(f.step_size, step.u)), at.master);
  }
};

template <bool kMomentum>
struct Lars {
  static constexpr unsigned kMoments = kMomentum ? kFirst : kNoMoment;
  static constexpr unsigned kDirectionMoments = kNoMoment;
  static HWY_INLINE FloatLanes Direction(const RuleFactors f, const VectorAt at) {
    return Scaled(f.gradient_scale, Load(at.gradient));
  }
  static HWY_INLINE void Apply(const RuleFactors f, const VectorAt at) {
    const auto before = Load(at.master);
    const auto g = hn::Add(Direction(f, at), Scaled(f.coupled_decay, before));
    auto step = Scaled(f.step_size, g);
    if constexpr (kMomentum) {
      step = hn::Add(Scaled(f.beta1, Load(at.moment1)), step);
      Store(step, at.moment1);
    }
    Store(hn::Sub(before, step), at.master);
  }
};

struct Adafactor {
  static constexpr unsigned kMoments = kFirst;
  static constexpr unsigned kDirectionMoments = kFirst;
  struct Step {
    FloatLanes v, u;
  };
  static HWY_INLINE Step StepOf(const RuleFactors f, const VectorAt at) {
    const auto g = Scaled(f.gradient_scale, Load(at.gradient));
    const auto v =
        hn::Add(Scaled(f.beta2, Load(at.moment1)), Scaled(f.one_minus_beta2, hn::Mul(g, g)));
    const auto least = hn::Set(Floats(), f.epsilon);
    // Max would drop a NaN.
    const auto bounded = hn::IfThenElse(hn::Lt(v, least), least, v);
    return {v, hn::Div(g, hn::Sqrt(bounded))};
  }
  static HWY_INLINE FloatLanes Direction(const RuleFactors f, const VectorAt at) {
    return StepOf(f, at).u;
  }
  static HWY_INLINE void Apply(const RuleFactors f, const VectorAt at) {
    const Step step = StepOf(f, at);
    Store(step.v, at.moment1);
    Store(hn::Sub(Scaled(f.decay, Load(at.master)), Scaled(f.step_size, step.u)), at.master);
  }
};

// Returns the vector at element `i` of a run. No offset may be added to the null pointer of a
// moment that the rule lacks.
template <unsigned kMoments>
HWY_INLINE VectorAt At(const RuleRun& run, size_t i) {
  VectorAt at = {run.gradient + i, run.master + i, nullptr, nullptr, nullptr};
  if constexpr ((kMoments & kFirst) != 0) at.moment1 = run.moments[0] + i;
  if constexpr ((kMoments & kSecond) != 0) at.moment2 = run.moments[1] + i;
  if constexpr ((kMoments & kThird) != 0) at.moment3 = run.moments[2] + i;
  return at;
}

// The last elements of a run, fewer than a vector, in buffers that hold one vector.
template <unsigned kMoments>
struct Tail {
  static constexpr size_t kLanes = hn::MaxLanes(Floats());
  Tail(const RuleRun& run, size_t i, size_t count) : from(At<kMoments>(run, i)), bytes(count * 4) {
    std::memcpy(gradient, from.gradient, bytes);
    std::memcpy(master, from.master, bytes);
    if constexpr ((kMoments & kFirst) != 0) std::memcpy(moment1, from.moment1, bytes);
    if constexpr ((kMoments & kSecond) != 0) std::memcpy(moment2, from.moment2, bytes);
    if constexpr ((kMoments & kThird) != 0) std::memcpy(moment3, from.moment3, bytes);
  }
  VectorAt at() { return {gradient, master, moment1, moment2, moment3}; }
  void PutBack() {
    std::memcpy(from.master, master, bytes);
    if constexpr ((kMoments & kFirst) != 0) std::memcpy(from.moment1, moment1, bytes);
    if constexpr ((kMoments & kSecond) != 0) std::memcpy(from.moment2, moment2, bytes);
    if constexpr ((kMoments & kThird) != 0) std::memcpy(from.moment3, moment3, bytes);
  }

  const VectorAt from;
  const size_t bytes;
  float gradient[kLanes] = {}, master[kLanes] = {};
  float moment1[kLanes] = {}, moment2[kLanes] = {}, moment3[kLanes] = {};
};

template <class R>
void UpdateTail(const RuleFactors f, const RuleRun& run, size_t i, size_t count) {
  Tail<R::kMoments> tail(run, i, count);
  R::Apply(f, tail.at());
  tail.PutBack();
}

template <class R>
void UpdateRun(const RuleFactors f, const RuleRun run) {
  const auto n = static_cast<size_t>(run.num_elements);
  const size_t lanes = hn::Lanes(Floats());
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) R::Apply(f, At<R::kMoments>(run, i));
  if (i < n) UpdateTail<R>(f, run, i, n - i);
}

template <class R>
void DirectionOfRun(const RuleFactors f, const RuleRun run, float* direction) {
  constexpr unsigned kMoments = R::kDirectionMoments;
  const auto n = static_cast<size_t>(run.num_elements);
  const size_t lanes = hn::Lanes(Floats());
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) Store(R::Direction(f, At<kMoments>(run, i)), direction + i);
  if (i == n) return;
  Tail<kMoments> tail(run, i, n - i);
  float out[Tail<kMoments>::kLanes];
  Store(R::Direction(f, tail.at()), out);
  std::memcpy(direction + i, out, tail.bytes);
}

}  // namespace

void UpdateElementsOnTarget(const RuleFactors& f, const RuleRun& run) {
  switch (f.kind) {
    case RuleKind::kAdamW:
      return f.amsgrad ? UpdateRun<Adam<true, true>>(f, run) : UpdateRun<Adam<true, false>>(f, run);
    case RuleKind::kAdam:
      return f.amsgrad ? UpdateRun<Adam<false, true>>(f, run)
                       : UpdateRun<Adam<false, false>>(f, run);
    case RuleKind::kSgd:
      if (!f.has_momentum) return UpdateRun<Sgd<false, false>>(f, run);
      return f.nesterov ? UpdateRun<Sgd<true, true>>(f, run) : UpdateRun<Sgd<true, false>>(f, run);
    case RuleKind::kRmsProp:
      if (f.centered) {
        return f.has_momentum ? UpdateRun<RmsProp<true, true>>(f, run)
                              : UpdateRun<RmsProp<false, true>>(f, run);
      }
      return f.has_momentum ? UpdateRun<RmsProp<true, false>>(f, run)
                            : UpdateRun<RmsProp<false, false>>(f, run);
    case RuleKind::kLion: return UpdateRun<Lion>(f, run);
    case RuleKind::kLamb: return UpdateRun<Lamb>(f, run);
    case RuleKind::kLars:
      return f.has_momentum ? UpdateRun<Lars<true>>(f, run) : UpdateRun<Lars<false>>(f, run);
    case RuleKind::kAdafactor: return UpdateRun<Adafactor>(f, run);
  }
}

void DirectionOnTarget(const RuleFactors& f, const RuleRun& run, float* direction) {
  if (f.kind == RuleKind::kLamb) return DirectionOfRun<Lamb>(f, run, direction);
  if (f.kind == RuleKind::kLars) return DirectionOfRun<Lars<false>>(f, run, direction);
  return DirectionOfRun<Adafactor>(f, run, direction);
}

const char* TargetNameOnTarget() { return hwy::TargetName(HWY_TARGET); }

}  // namespace spillway::optim::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway::optim {
namespace {

HWY_EXPORT(UpdateElementsOnTarget);
HWY_EXPORT(DirectionOnTarget);
HWY_EXPORT(TargetNameOnTarget);

}  // namespace

float ToFloat(double value) {
  constexpr double kMost = std::numeric_limits<float>::max();
  if (std::fabs(value) > kMost) {
    return std::copysign(std::numeric_limits<float>::infinity(), value > 0 ? 1.0F : -1.0F);
  }
  return static_cast<float>(value);
}

RuleFactors MakeFactors(const Rule& rule, const Update& update) {
  const double lr = update.learning_rate;
  const bool is_adam = rule.kind == RuleKind::kAdamW || rule.kind == RuleKind::kAdam;
  RuleFactors f = {
      .kind = rule.kind,
      .has_momentum = rule.momentum != 0,
      .nesterov = rule.nesterov,
      .centered = rule.centered,
      .amsgrad = rule.amsgrad,
      .gradient_scale = ToFloat(rule.maximize ? -update.gradient_scale : update.gradient_scale),
      .decay = ToFloat(1.0 - lr * update.weight_decay),
      .coupled_decay = ToFloat(update.weight_decay),
      .beta1 = ToFloat(rule.beta1),
      .one_minus_beta1 = ToFloat(1.0 - rule.beta1),
      .beta2 = ToFloat(rule.beta2),
      .one_minus_beta2 = ToFloat(1.0 - rule.beta2),
      .step_size = ToFloat(lr),
      .epsilon = ToFloat(rule.epsilon)};
  if (rule.kind == RuleKind::kSgd || rule.kind == RuleKind::kRmsProp ||
      rule.kind == RuleKind::kLars) {
    f.beta1 = ToFloat(rule.momentum);
    f.beta2 = ToFloat(rule.alpha);
    f.one_minus_beta2 = ToFloat(1.0 - rule.alpha);
    f.variance_share = ToFloat(rule.alpha * (1.0 - rule.alpha));
  }
  if (rule.kind == RuleKind::kSgd)
    f.one_minus_beta1 = ToFloat(update.step == 1 ? 1.0 : 1.0 - rule.dampening);
  const auto t = static_cast<double>(update.step);
  if (is_adam) {
    f.step_size = ToFloat(lr / (1.0 - std::pow(rule.beta1, t)));
    f.bias2_root = ToFloat(std::sqrt(1.0 - std::pow(rule.beta2, t)));
  }
  if (rule.kind == RuleKind::kLamb) {
    f.moment_scale = ToFloat(1.0 / (1.0 - std::pow(rule.beta1, t)));
    f.bias2_root = ToFloat(std::sqrt(1.0 - std::pow(rule.beta2, t)));
  }
  if (rule.kind == RuleKind::kAdafactor) {
    const double share = std::pow(t, -rule.beta2_decay);  // weight of the new square
    f.beta2 = ToFloat(1.0 - share);
    f.one_minus_beta2 = ToFloat(share);
    f.epsilon = ToFloat(rule.epsilon * rule.epsilon);
  }
  return f;
}

void UpdateElements(const RuleFactors& factors, const RuleRun& run) {
  HWY_DYNAMIC_DISPATCH(UpdateElementsOnTarget)(factors, run);
}

void DirectionOfElements(const RuleFactors& factors, const RuleRun& run, float* direction) {
  HWY_DYNAMIC_DISPATCH(DirectionOnTarget)(factors, run, direction);
}

const char* InstructionSet() { return HWY_DYNAMIC_DISPATCH(TargetNameOnTarget)(); }

}  // namespace spillway::optim
#endif  // HWY_ONCE
