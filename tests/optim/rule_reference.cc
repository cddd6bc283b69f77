// SPDX-License-Identifier: Apache-2.0

#include "tests/optim/rule_reference.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace spillway::optim {

float FloatOfHalf(uint16_t half) {
  const int exponent = (half >> 10) & 31;
  const int fraction = half & 1023;
  double value =
      exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  if (exponent == 31) value = fraction == 0 ? HUGE_VAL : std::numeric_limits<double>::quiet_NaN();
  return static_cast<float>((half & 0x8000) != 0 ? -value : value);
}

uint16_t HalfOfFloat(float value) {
  const double magnitude = std::fabs(static_cast<double>(value));
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (magnitude == 0) return sign;
  const int exponent = std::isinf(value) ? 16 : std::max(std::ilogb(magnitude), -14);
  const double units =
      std::rint(std::ldexp(magnitude, 10 - exponent));  // 1024 to 2048; less if denormal
  const int bits = exponent > 15 ? 0x7c00 : ((exponent + 14) << 10) + static_cast<int>(units);
  return static_cast<uint16_t>(sign | std::min(bits, 0x7c00));
}

float FloatOfBf16(uint16_t bits) { return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16); }

uint16_t Bf16OfFloat(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t low = bits & 0xffff;
  const uint32_t down = bits >> 16;
  const bool up = low > 0x8000 || (low == 0x8000 && down % 2 == 1);
  return static_cast<uint16_t>(down + (up ? 1 : 0));
}

uint32_t ReferenceWord(uint64_t key, uint64_t element) {
  const auto mixed = [](uint64_t x) {
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
    return x ^ (x >> 31);
  };
  const uint64_t block_key = mixed(key + element / 65536 * 0x9e3779b97f4a7c15U);
  uint32_t x = static_cast<uint32_t>(element % 65536) ^ static_cast<uint32_t>(block_key);
  x ^= x >> 16;
  x = x * 0x7feb352dU ^ static_cast<uint32_t>(block_key >> 32);
  x ^= x >> 15;
  x *= 0x846ca68bU;
  return x ^ (x >> 16);
}

uint16_t RandomlyRounded(float value, uint64_t key, uint64_t element) {
  const uint32_t random = ReferenceWord(key, element) >> 16;
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude >= 0x7f800000) return static_cast<uint16_t>(bits >> 16);
  const uint32_t rounded = std::min<uint32_t>(magnitude + random, 0x7f7fffff);
  return static_cast<uint16_t>((rounded | (bits & 0x80000000)) >> 16);
}

void UpdateReference(const RuleFactors& f, float gradient, float* master,
                     const std::array<float*, kMostMoments>& moments, float* stepped_along) {
  const auto& [moment1, moment2, moment3] = moments;
  const float p = *master;
  const float scaled = f.gradient_scale * gradient;
  const float coupled = scaled + f.coupled_decay * p;
  switch (f.kind) {
    case RuleKind::kAdamW:
    case RuleKind::kAdam: {
      const float g = f.kind == RuleKind::kAdamW ? scaled : coupled;
      const float before = f.kind == RuleKind::kAdamW ? f.decay * p : p;
      *moment1 = f.beta1 * *moment1 + f.one_minus_beta1 * g;
      const float squared = g * g;
      *moment2 = f.beta2 * *moment2 + f.one_minus_beta2 * squared;
      if (f.amsgrad) *moment3 = *moment2 > *moment3 || std::isnan(*moment2) ? *moment2 : *moment3;
      const float divisor = f.amsgrad ? *moment3 : *moment2;
      const float denominator = std::sqrt(divisor) / f.bias2_root + f.epsilon;
      *master = before - f.step_size * (*moment1 / denominator);
      return;
    }
    case RuleKind::kSgd: {
      float step = coupled;
      if (f.has_momentum) {
        const float scaled_gradient = f.one_minus_beta1 * coupled;
        *moment1 = f.beta1 * *moment1 + scaled_gradient;
        const float ahead = f.beta1 * *moment1;
        step = f.nesterov ? coupled + ahead : *moment1;
      }
      *master = p - f.step_size * step;
      return;
    }
    case RuleKind::kRmsProp: {
      const float deviation = f.centered ? coupled - *moment3 : coupled;
      const float squared = deviation * deviation;
      *moment1 = f.beta2 * *moment1 + (f.centered ? f.variance_share : f.one_minus_beta2) * squared;
      if (f.centered) *moment3 = f.beta2 * *moment3 + f.one_minus_beta2 * coupled;
      const float direction = coupled / (std::sqrt(*moment1) + f.epsilon);
      if (f.has_momentum) *moment2 = f.beta1 * *moment2 + direction;
      *master = p - f.step_size * (f.has_momentum ? *moment2 : direction);
      return;
    }
    case RuleKind::kLion: {
      const float u = f.beta1 * *moment1 + f.one_minus_beta1 * scaled;
      *moment1 = f.beta2 * *moment1 + f.one_minus_beta2 * scaled;
      const float sign = u > 0 ? 1.0F : u < 0 ? -1.0F : u == 0 ? 0.0F : u;
      *master = f.decay * p - f.step_size * sign;
      return;
    }
    case RuleKind::kLamb: {
      *moment1 = f.beta1 * *moment1 + f.one_minus_beta1 * scaled;
      const float squared = scaled * scaled;
      *moment2 = f.beta2 * *moment2 + f.one_minus_beta2 * squared;
      const float denominator = std::sqrt(*moment2) / f.bias2_root + f.epsilon;
      *stepped_along = f.moment_scale * (*moment1 / denominator) + f.coupled_decay * p;
      *master = p - f.step_size * *stepped_along;
      return;
    }
    case RuleKind::kLars: {
      *stepped_along = scaled;
      const float step = f.step_size * coupled;
      if (f.has_momentum) *moment1 = f.beta1 * *moment1 + step;
      *master = p - (f.has_momentum ? *moment1 : step);
      return;
    }
    case RuleKind::kAdafactor: {
      const float squared = scaled * scaled;
      *moment1 = f.beta2 * *moment1 + f.one_minus_beta2 * squared;
      *stepped_along = scaled / std::sqrt(*moment1 < f.epsilon ? f.epsilon : *moment1);
      *master = f.decay * p - f.step_size * *stepped_along;
      return;
    }
  }
}

std::vector<Rule> AllRules() {
  std::vector<Rule> rules;
  for (int kind = 0; kind < kNumRuleKinds; ++kind) {
    const Rule usual = UsualRule(static_cast<RuleKind>(kind));
    const size_t first = rules.size();
    rules.push_back(usual);
    rules.back().momentum = 0;
    // Adds each rule of this kind so far once more, with a variant.
    const auto vary = [&](const auto& change) {
      for (size_t i = first, end = rules.size(); i < end; ++i) {
        rules.push_back(rules[i]);
        change(&rules.back());
      }
    };
    switch (usual.kind) {
      case RuleKind::kAdamW:
      case RuleKind::kAdam: vary([](Rule* rule) { rule->amsgrad = true; }); break;
      case RuleKind::kSgd:
        vary([](Rule* rule) { rule->momentum = 0.9; });
        rules.push_back(rules.back());
        rules.back().nesterov = true;
        rules.push_back(rules.back());
        rules.back().nesterov = false;
        rules.back().dampening = 0.5;
        break;
      case RuleKind::kRmsProp:
        vary([](Rule* rule) { rule->momentum = 0.9; });
        vary([](Rule* rule) { rule->centered = true; });
        break;
      case RuleKind::kLars: vary([](Rule* rule) { rule->momentum = 0.9; }); break;
      default: break;
    }
  }
  return rules;
}

std::string RuleName(const Rule& rule) {
  std::string name(Name(rule.kind));
  if (rule.momentum != 0) name += "_momentum";
  if (rule.nesterov) name += "_nesterov";
  if (rule.dampening != 0) name += "_dampening";
  if (rule.centered) name += "_centered";
  if (rule.amsgrad) name += "_amsgrad";
  return name;
}

}  // namespace spillway::optim
