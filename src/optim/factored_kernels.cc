// SPDX-License-Identifier: Apache-2.0
//
// Highway compiles these kernels once for each instruction set, with -ffp-contract=off. The
// elements at the end of a run that do not fill a vector go through the same vector code, as in
// rule_kernels.cc.

#include "src/optim/factored_kernels.h"

#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/optim/factored_kernels.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace spillway::optim::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::ScalableTag<float>;
using FloatLanes = hn::Vec<Floats>;

HWY_INLINE FloatLanes Load(const float* from) { return hn::LoadU(Floats(), from); }
HWY_INLINE FloatLanes Scaled(float factor, FloatLanes lanes) {
  return hn::Mul(hn::Set(Floats(), factor), lanes);
}

HWY_INLINE FloatLanes StepOf(const RuleFactors f, float row, float mean, FloatLanes gradient,
                             FloatLanes column) {
  const Floats d;
  const auto v = hn::Div(Scaled(row, column), hn::Set(d, mean));
  const auto least = hn::Set(d, f.epsilon);
  const auto bounded = hn::IfThenElse(hn::Lt(v, least), least, v);  // Max would drop a NaN
  return hn::Div(Scaled(f.gradient_scale, gradient), hn::Sqrt(bounded));
}

// Calls apply(a, b, to) for each vector of three runs; apply writes `to`.
template <class Apply>
HWY_INLINE void ForEachVector(const float* a, const float* b, float* to, size_t n,
                              const Apply& apply) {
  const size_t lanes = hn::Lanes(Floats());
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) apply(a + i, b + i, to + i);
  if (i == n) return;
  constexpr size_t kLanes = hn::MaxLanes(Floats());
  float a_tail[kLanes] = {}, b_tail[kLanes] = {}, to_tail[kLanes] = {};
  const size_t bytes = (n - i) * sizeof(float);
  std::memcpy(a_tail, a + i, bytes);
  std::memcpy(b_tail, b + i, bytes);
  std::memcpy(to_tail, to + i, bytes);
  apply(a_tail, b_tail, to_tail);
  std::memcpy(to + i, to_tail, bytes);
}

}  // namespace

void ScaleOnTarget(float scale, const float* from, size_t n, float* to) {
  ForEachVector(from, from, to, n, [=](const float* value, const float*, float* scaled) {
    hn::StoreU(Scaled(scale, Load(value)), Floats(), scaled);
  });
}

void FactoredStepOnTarget(const RuleFactors& factors, const FactoredRun& run, float* step) {
  const RuleFactors f = factors;
  const float row = run.row, mean = run.mean;
  ForEachVector(run.gradient, run.columns, step, static_cast<size_t>(run.num_elements),
                [=](const float* gradient, const float* column, float* to) {
                  hn::StoreU(StepOf(f, row, mean, Load(gradient), Load(column)), Floats(), to);
                });
}

void UpdateFactoredOnTarget(const RuleFactors& factors, const FactoredRun& run, float* master) {
  const RuleFactors f = factors;
  const float row = run.row, mean = run.mean;
  ForEachVector(run.gradient, run.columns, master, static_cast<size_t>(run.num_elements),
                [=](const float* gradient, const float* column, float* p) {
                  const auto u = StepOf(f, row, mean, Load(gradient), Load(column));
                  const auto decayed = Scaled(f.decay, Load(p));
                  hn::StoreU(hn::Sub(decayed, Scaled(f.step_size, u)), Floats(), p);
                });
}

}  // namespace spillway::optim::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway::optim {
namespace {

HWY_EXPORT(ScaleOnTarget);
HWY_EXPORT(FactoredStepOnTarget);
HWY_EXPORT(UpdateFactoredOnTarget);

}  // namespace

void ScaleElements(float scale, const float* from, int64_t n, float* to) {
  HWY_DYNAMIC_DISPATCH(ScaleOnTarget)(scale, from, static_cast<size_t>(n), to);
}

void FactoredStep(const RuleFactors& factors, const FactoredRun& run, float* step) {
  HWY_DYNAMIC_DISPATCH(FactoredStepOnTarget)(factors, run, step);
}

void UpdateFactored(const RuleFactors& factors, const FactoredRun& run, float* master) {
  HWY_DYNAMIC_DISPATCH(UpdateFactoredOnTarget)(factors, run, master);
}

}  // namespace spillway::optim
#endif  // HWY_ONCE
