// SPDX-License-Identifier: Apache-2.0
//
// The kernel against one element at a time: the same bits on every instruction set that the machine
// has, for any length, cut and alignment. Half precision is checked over all of its values, and the
// whole against the rule in double and against PyTorch.

#include "src/optim/adamw_kernel.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/optim/adamw_golden.h"

namespace spillway::optim {
namespace {

float FloatOfHalf(uint16_t half) {
  const int exponent = (half >> 10) & 31;
  const int fraction = half & 1023;
  double value =
      exponent == 0 ? std::ldexp(fraction, -24) : std::ldexp(1024 + fraction, exponent - 25);
  if (exponent == 31) value = fraction == 0 ? HUGE_VAL : std::numeric_limits<double>::quiet_NaN();
  return static_cast<float>((half & 0x8000) != 0 ? -value : value);
}

// Rounded to nearest even: the multiple of the value's last place that rint picks. Not for NaN.
uint16_t HalfOfFloat(float value) {
  const double magnitude = std::fabs(static_cast<double>(value));
  const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
  if (magnitude == 0) return sign;
  const int exponent = std::isinf(value) ? 16 : std::max(std::ilogb(magnitude), -14);
  const double units =
      std::rint(std::ldexp(magnitude, 10 - exponent));  // 1024 to 2048, below if denormal
  const int bits = exponent > 15 ? 0x7c00 : ((exponent + 14) << 10) + static_cast<int>(units);
  return static_cast<uint16_t>(sign | std::min(bits, 0x7c00));
}

struct Buffers {
  std::vector<float> gradient, master, moment1, moment2;
  std::vector<uint16_t> half_gradient, weight;
  friend bool operator==(const Buffers&, const Buffers&) = default;
};

Buffers RandomBuffers(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Buffers b;
  for (size_t i = 0; i < n; ++i) {
    const float scale = std::exp2(static_cast<float>(random() % 24) - 20.0f);
    b.half_gradient.push_back(HalfOfFloat(normal(random) * scale));
    b.gradient.push_back(normal(random) * scale);
    b.master.push_back(normal(random));
    b.moment1.push_back(normal(random) * scale);
    b.moment2.push_back(std::fabs(normal(random)) * scale * scale);
    b.weight.push_back(0xdead);
  }
  return b;
}

struct Variant {
  bool half_gradient;
  bool weight;
};
constexpr Variant kVariants[] = {{false, false}, {false, true}, {true, false}, {true, true}};

// `gap` elements are left untouched before element `begin`, so that alignment varies.
AdamWRun RunOf(Buffers& b, Variant variant, size_t begin, size_t end) {
  AdamWRun run;
  run.num_elements = static_cast<int64_t>(end - begin);
  run.gradient_is_f16 = variant.half_gradient;
  run.gradient = variant.half_gradient ? static_cast<const void*>(b.half_gradient.data() + begin)
                                       : static_cast<const void*>(b.gradient.data() + begin);
  run.master = b.master.data() + begin;
  run.moment1 = b.moment1.data() + begin;
  run.moment2 = b.moment2.data() + begin;
  run.weight = variant.weight ? b.weight.data() + begin : nullptr;
  return run;
}

// The specification, an element at a time, in float.
void Reference(const AdamWFactors& f, Variant variant, Buffers& b, size_t begin, size_t end) {
  for (size_t i = begin; i < end; ++i) {
    const float raw = variant.half_gradient ? FloatOfHalf(b.half_gradient[i]) : b.gradient[i];
    const float g = raw * f.gradient_scale;
    const float m_old = f.beta1 * b.moment1[i];
    const float m_new = f.one_minus_beta1 * g;
    b.moment1[i] = m_old + m_new;
    const float squared = g * g;
    const float v_old = f.beta2 * b.moment2[i];
    const float v_new = f.one_minus_beta2 * squared;
    b.moment2[i] = v_old + v_new;
    const float root = std::sqrt(b.moment2[i]) / f.bias2_root;
    const float direction = b.moment1[i] / (root + f.epsilon);
    const float decayed = b.master[i] * f.decay;
    const float change = f.step_size * direction;
    b.master[i] = decayed - change;
    if (variant.weight) b.weight[i] = HalfOfFloat(b.master[i]);
  }
}

AdamWFactors SomeFactors() {
  return MakeAdamWFactors({.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8, .weight_decay = 0.1},
                          {.step = 3, .learning_rate = 1e-3, .gradient_scale = 0.37});
}

// Each instruction set that this machine has, by restricting dispatch to it.
class AdamWKernel : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

// The library is Highway's own, which the product does not load.
TEST(InstructionSets, AreThoseThatHighwaysLibraryFinds) {
  void* const library = dlopen("libhwy.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) GTEST_SKIP() << dlerror();
  const auto supported =
      reinterpret_cast<int64_t (*)()>(dlsym(library, "_ZN3hwy16SupportedTargetsEv"));
  ASSERT_NE(supported, nullptr);
  EXPECT_EQ(hwy::SupportedTargets() & HWY_TARGETS, supported() & HWY_TARGETS);
}

TEST_P(AdamWKernel, RunsOnTheInstructionSetUnderTest) {
  EXPECT_STREQ(AdamWInstructionSet(), hwy::TargetName(GetParam()));
}

TEST_P(AdamWKernel, GivesTheReferencesBitsForEveryLength) {
  for (const Variant variant : kVariants) {
    for (size_t n = 0; n <= 70; ++n) {
      Buffers b = RandomBuffers(n, static_cast<uint32_t>(n));
      Buffers expected = b;
      Reference(SomeFactors(), variant, expected, 0, n);
      UpdateAdamW(SomeFactors(), RunOf(b, variant, 0, n));
      EXPECT_EQ(b, expected) << n;
    }
  }
}

TEST_P(AdamWKernel, GivesTheSameBitsForEveryCutAndAlignment) {
  constexpr size_t kElements = 1000;
  for (const Variant variant : kVariants) {
    const Buffers start = RandomBuffers(kElements, 5);
    Buffers expected = start;
    Reference(SomeFactors(), variant, expected, 0, kElements);
    for (size_t piece : {1, 3, 7, 16, 17, 31, 64, 333, 999}) {
      Buffers b = start;
      for (size_t begin = 0; begin < kElements; begin += piece) {
        UpdateAdamW(SomeFactors(), RunOf(b, variant, begin, std::min(begin + piece, kElements)));
      }
      EXPECT_EQ(b, expected) << piece;
    }
  }
}

TEST_P(AdamWKernel, TouchesNothingOutsideTheRun) {
  for (const Variant variant : kVariants) {
    for (size_t begin = 0; begin < 20; ++begin) {
      Buffers b = RandomBuffers(100, 6);
      Buffers expected = b;
      Reference(SomeFactors(), variant, expected, begin, 60 + begin);
      UpdateAdamW(SomeFactors(), RunOf(b, variant, begin, 60 + begin));
      EXPECT_EQ(b, expected) << begin;
    }
  }
}

// With beta1 zero the first moment becomes the gradient.
TEST_P(AdamWKernel, ReadsEveryHalf) {
  const AdamWFactors factors =
      MakeAdamWFactors({.beta1 = 0, .beta2 = 0.5, .weight_decay = 0}, {.learning_rate = 0});
  Buffers b = RandomBuffers(65536, 7);
  std::fill(b.moment1.begin(), b.moment1.end(), 0.0f);
  for (size_t i = 0; i < 65536; ++i) b.half_gradient[i] = static_cast<uint16_t>(i);
  UpdateAdamW(factors, RunOf(b, {true, false}, 0, 65536));
  for (size_t i = 0; i < 65536; ++i) {
    const float expected = FloatOfHalf(static_cast<uint16_t>(i));
    if (std::isnan(expected)) {
      EXPECT_TRUE(std::isnan(b.moment1[i])) << i;
    } else {
      EXPECT_EQ(b.moment1[i], expected) << i;
    }
  }
}

// With a learning rate of zero the weight is the master, rounded: at every half, half way between
// two, and the floats on either side of both.
TEST_P(AdamWKernel, RoundsEveryWeightToNearestEven) {
  const AdamWFactors factors = MakeAdamWFactors({}, {.learning_rate = 0});
  std::vector<float> values;
  for (uint32_t half = 0; half < 0x7c00; ++half) {
    const float low = FloatOfHalf(static_cast<uint16_t>(half));
    const float high = half == 0x7bff ? 65536.0f : FloatOfHalf(static_cast<uint16_t>(half + 1));
    for (const float at : {low, 0.5f * (low + high)}) {
      for (const float value : {std::nextafter(at, -1.0f), at, std::nextafter(at, 1e9f)}) {
        values.push_back(value);
        values.push_back(-value);
      }
    }
  }
  for (const float value :
       {65536.0f, 70000.0f, 3e38f, std::numeric_limits<float>::infinity(), 1e-30f}) {
    values.push_back(value);
    values.push_back(-value);
  }
  const size_t n = values.size();
  Buffers b = RandomBuffers(n, 8);
  b.master = values;
  UpdateAdamW(factors, RunOf(b, {false, true}, 0, n));
  EXPECT_EQ(b.master, values);
  size_t wrong = 0;
  for (size_t i = 0; i < n; ++i) {
    if (b.weight[i] != HalfOfFloat(values[i]) && ++wrong < 10) {
      ADD_FAILURE() << values[i] << " became " << b.weight[i] << ", not " << HalfOfFloat(values[i]);
    }
  }
  EXPECT_EQ(wrong, 0u);
}

TEST_P(AdamWKernel, KeepsNaN) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Variant variant : kVariants) {
    Buffers b = RandomBuffers(20, 9);
    b.master[3] = nan;
    b.master[19] = -nan;
    UpdateAdamW(SomeFactors(), RunOf(b, variant, 0, 20));
    EXPECT_TRUE(std::isnan(b.master[3]) && std::isnan(b.master[19]));
    if (!variant.weight) continue;
    EXPECT_TRUE(std::isnan(FloatOfHalf(b.weight[3])) && std::isnan(FloatOfHalf(b.weight[19])));
  }
}

std::string InstructionSetName(const testing::TestParamInfo<int64_t>& target) {
  return hwy::TargetName(target.param);
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, AdamWKernel,
                         testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                         InstructionSetName);

// Many steps of the rule in double, with the quantities of the paper rather than the kernel's
// factors.
TEST(AdamW, FollowsTheRuleInDouble) {
  constexpr size_t kElements = 257;
  const AdamWOptions options = {
      .beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8, .weight_decay = 0.05};
  Buffers b = RandomBuffers(kElements, 10);
  std::fill(b.moment1.begin(), b.moment1.end(), 0.0f);
  std::fill(b.moment2.begin(), b.moment2.end(), 0.0f);
  std::vector<double> p(b.master.begin(), b.master.end()), m(kElements), v(kElements);
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  for (int64_t t = 1; t <= 50; ++t) {
    const double lr = 1e-2 / static_cast<double>(t);
    for (float& g : b.gradient) g = normal(random);
    UpdateAdamW(MakeAdamWFactors(options, {.step = t, .learning_rate = lr, .gradient_scale = 0.5}),
                RunOf(b, {false, true}, 0, kElements));
    for (size_t i = 0; i < kElements; ++i) {
      const double g = 0.5 * static_cast<double>(b.gradient[i]);
      p[i] *= 1 - lr * options.weight_decay;
      m[i] = options.beta1 * m[i] + (1 - options.beta1) * g;
      v[i] = options.beta2 * v[i] + (1 - options.beta2) * g * g;
      const double m_hat = m[i] / (1 - std::pow(options.beta1, t));
      const double v_hat = v[i] / (1 - std::pow(options.beta2, t));
      p[i] -= lr * m_hat / (std::sqrt(v_hat) + options.epsilon);
    }
  }
  for (size_t i = 0; i < kElements; ++i) {
    EXPECT_NEAR(b.master[i], p[i], 2e-6 * std::max(1.0, std::fabs(p[i]))) << i;
    EXPECT_NEAR(b.moment1[i], m[i], 1e-6) << i;
    EXPECT_NEAR(b.moment2[i], v[i], 1e-6) << i;
    EXPECT_EQ(b.weight[i], HalfOfFloat(b.master[i])) << i;
  }
}

// What torch.optim.AdamW made of the same gradients; adamw_golden.py wrote it down. Its parameters
// are fp32 too, so that a few last places remain.
TEST(AdamW, FollowsPyTorchStepForStep) {
  constexpr size_t kElements = golden::kElements;
  const AdamWOptions options = {.beta1 = golden::kBeta1,
                                .beta2 = golden::kBeta2,
                                .epsilon = golden::kEpsilon,
                                .weight_decay = golden::kWeightDecay};
  Buffers b = RandomBuffers(kElements, 12);
  b.master.assign(std::begin(golden::kInitial), std::end(golden::kInitial));
  b.moment1.assign(kElements, 0.0f);
  b.moment2.assign(kElements, 0.0f);
  for (int t = 0; t < golden::kSteps; ++t) {
    b.gradient.assign(std::begin(golden::kGradients[t]), std::end(golden::kGradients[t]));
    const AdamWStep step = {.step = t + 1, .learning_rate = golden::kLearningRates[t]};
    UpdateAdamW(MakeAdamWFactors(options, step), RunOf(b, {false, false}, 0, kElements));
    for (size_t i = 0; i < kElements; ++i) {
      const float p = golden::kParameters[t][i], m = golden::kMoments1[t][i],
                  v = golden::kMoments2[t][i];
      const std::string where = "step " + std::to_string(t + 1) + " element " + std::to_string(i);
      EXPECT_NEAR(b.master[i], p, 5e-7 * std::fabs(p)) << where;
      EXPECT_NEAR(b.moment1[i], m, 5e-7 * (std::fabs(m) + std::fabs(b.gradient[i])))
          << where;  // terms cancel
      EXPECT_NEAR(b.moment2[i], v, 5e-7 * v) << where;
    }
  }
}

}  // namespace
}  // namespace spillway::optim
