// SPDX-License-Identifier: Apache-2.0
//
// Tests the rules' kernels. They give the bits of the reference, which takes one element at a time,
// on every instruction set of this machine, for any length, cut and alignment, and NaN where it
// gives NaN. They follow PyTorch, and AdamW follows the rule in double.

#include "src/optim/rule_kernels.h"

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "src/optim/state_specs.h"
#include "tests/optim/norm_reference.h"
#include "tests/optim/rule_golden.h"
#include "tests/optim/rule_reference.h"

namespace spillway::optim {
namespace {

struct Buffers {
  std::vector<float> gradient, master, moment1, moment2, moment3;
  friend bool operator==(const Buffers&, const Buffers&) = default;
};

Buffers RandomBuffers(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  Buffers b;
  for (size_t i = 0; i < n; ++i) {
    const float scale = std::exp2(static_cast<float>(random() % 24) - 20.0F);
    b.gradient.push_back(i % 13 == 5 ? 0.0F : normal(random) * scale);
    b.master.push_back(normal(random));
    b.moment1.push_back(i % 13 == 5 ? 0.0F : std::fabs(normal(random)) * scale);
    b.moment2.push_back(std::fabs(normal(random)) * scale * scale);
    b.moment3.push_back(std::fabs(normal(random)) * scale * scale);
  }
  return b;
}

std::vector<float>& MomentOf(Buffers& b, size_t slot) {
  return slot == 0 ? b.moment1 : slot == 1 ? b.moment2 : b.moment3;
}

// Returns a run with the moments that the rule has. The others are null.
RuleRun RunOf(const Rule& rule, Buffers& b, size_t begin, size_t end) {
  RuleRun run = {.num_elements = static_cast<int64_t>(end - begin),
                 .gradient = b.gradient.data() + begin,
                 .master = b.master.data() + begin};
  for (const std::string_view name : MomentNames(rule)) {
    const size_t slot = SlotOf(rule.kind, name);
    run.moments[slot] = MomentOf(b, slot).data() + begin;
  }
  return run;
}

// Updates an element, and returns what the rule takes a norm of.
float ReferenceAt(const RuleFactors& f, Buffers& b, size_t i) {
  float direction = -1;
  UpdateReference(f, b.gradient[i], &b.master[i], {&b.moment1[i], &b.moment2[i], &b.moment3[i]},
                  &direction);
  return direction;
}

void Reference(const RuleFactors& f, Buffers& b, size_t begin, size_t end) {
  for (size_t i = begin; i < end; ++i) ReferenceAt(f, b, i);
}

// Whether the values have equal bits, or both are NaN.
bool AreSame(const std::vector<float>& a, const std::vector<float>& b) {
  return std::ranges::equal(a, b, [](float x, float y) {
    return (std::isnan(x) && std::isnan(y)) ||
           std::bit_cast<uint32_t>(x) == std::bit_cast<uint32_t>(y);
  });
}

RuleFactors SomeFactors(const Rule& rule) {
  return MakeFactors(
      rule, {.step = 3, .learning_rate = 1e-3, .weight_decay = 0.1, .gradient_scale = 0.37});
}

// Runs each rule on each instruction set of this machine, by restricting dispatch to it.
class RuleKernel : public testing::TestWithParam<std::tuple<int64_t, Rule>> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(std::get<0>(GetParam())); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
  const Rule rule_ = std::get<1>(GetParam());
};

// Compares with Highway's own library, which the product does not load.
TEST(InstructionSets, AreThoseThatHighwaysLibraryFinds) {
  void* const library = dlopen("libhwy.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) GTEST_SKIP() << dlerror();
  const auto supported =
      reinterpret_cast<int64_t (*)()>(dlsym(library, "_ZN3hwy16SupportedTargetsEv"));
  ASSERT_NE(supported, nullptr);
  EXPECT_EQ(hwy::SupportedTargets() & HWY_TARGETS, supported() & HWY_TARGETS);
}

TEST_P(RuleKernel, RunsOnTheInstructionSetUnderTest) {
  EXPECT_STREQ(InstructionSet(), hwy::TargetName(std::get<0>(GetParam())));
}

TEST_P(RuleKernel, GivesTheReferencesBitsForEveryLength) {
  for (size_t n = 0; n <= 70; ++n) {
    Buffers b = RandomBuffers(n, static_cast<uint32_t>(n));
    Buffers expected = b;
    Reference(SomeFactors(rule_), expected, 0, n);
    UpdateElements(SomeFactors(rule_), RunOf(rule_, b, 0, n));
    EXPECT_EQ(b, expected) << n;
  }
}

TEST_P(RuleKernel, GivesTheSameBitsForEveryCutAndAlignment) {
  constexpr size_t kElements = 1000;
  const Buffers start = RandomBuffers(kElements, 5);
  Buffers expected = start;
  Reference(SomeFactors(rule_), expected, 0, kElements);
  for (const size_t piece : {1, 3, 7, 16, 17, 31, 64, 333, 999}) {
    Buffers b = start;
    for (size_t begin = 0; begin < kElements; begin += piece) {
      UpdateElements(SomeFactors(rule_),
                     RunOf(rule_, b, begin, std::min(begin + piece, kElements)));
    }
    EXPECT_EQ(b, expected) << piece;
  }
}

TEST_P(RuleKernel, TouchesNothingOutsideTheRun) {
  for (size_t begin = 0; begin < 20; ++begin) {
    Buffers b = RandomBuffers(100, 6);
    Buffers expected = b;
    Reference(SomeFactors(rule_), expected, begin, 60 + begin);
    UpdateElements(SomeFactors(rule_), RunOf(rule_, b, begin, 60 + begin));
    EXPECT_EQ(b, expected) << begin;
  }
}

TEST_P(RuleKernel, GivesTheReferencesDirectionAndChangesNothing) {
  if (!NeedsNorms(rule_, 2)) return;
  const RuleFactors f = SomeFactors(rule_);
  for (size_t n = 0; n <= 70; ++n) {
    Buffers b = RandomBuffers(n, static_cast<uint32_t>(n));
    const Buffers before = b;
    std::vector<float> direction(n, -1.0F), expected(n, -1.0F);
    DirectionOfElements(f, RunOf(rule_, b, 0, n), direction.data());
    EXPECT_EQ(b, before) << n;
    for (size_t i = 0; i < n; ++i) expected[i] = ReferenceAt(f, b, i);
    EXPECT_EQ(direction, expected) << n;
  }
}

TEST_P(RuleKernel, KeepsNaN) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Buffers b = RandomBuffers(20, 9);
  b.master[3] = nan;
  b.master[19] = -nan;
  UpdateElements(SomeFactors(rule_), RunOf(rule_, b, 0, 20));
  EXPECT_TRUE(std::isnan(b.master[3]) && std::isnan(b.master[19]));
}

// Where two different NaNs meet, the instruction set may decide which of them the result is.
TEST_P(RuleKernel, GivesNaNWhereTheReferenceDoes) {
  constexpr size_t kElements = 70;  // each of the 32 combinations, in whole vectors and after them
  Buffers b = RandomBuffers(kElements, 9);
  for (size_t i = 0; i < kElements; ++i) {
    if ((i & 1) != 0) b.gradient[i] = std::bit_cast<float>(0x7fc00001U);
    if ((i & 2) != 0) b.master[i] = std::bit_cast<float>(0xffc00002U);
    if ((i & 4) != 0) b.moment1[i] = std::bit_cast<float>(0xffc00003U);
    if ((i & 8) != 0) b.moment2[i] = std::bit_cast<float>(0x7fc00004U);
    if ((i & 16) != 0) b.moment3[i] = std::bit_cast<float>(0x7fc00005U);
  }
  for (size_t n = 0; n <= kElements; ++n) {
    Buffers got = b, expected = b;
    Reference(SomeFactors(rule_), expected, 0, n);
    UpdateElements(SomeFactors(rule_), RunOf(rule_, got, 0, n));
    EXPECT_TRUE(AreSame(got.master, expected.master)) << n;
    EXPECT_TRUE(AreSame(got.moment1, expected.moment1)) << n;
    EXPECT_TRUE(AreSame(got.moment2, expected.moment2)) << n;
    EXPECT_TRUE(AreSame(got.moment3, expected.moment3)) << n;
  }
}

// A state of blocks spreads a gradient that is not finite to the block's other elements. A weight
// that only stopped to move would hide that.
TEST_P(RuleKernel, PassesNaNOnToTheWeight) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  Buffers b = RandomBuffers(20, 9);
  b.gradient[3] = nan;
  const std::vector<std::string_view> names = MomentNames(rule_);
  for (size_t m = 0; m < names.size(); ++m) MomentOf(b, SlotOf(rule_.kind, names[m]))[17 + m] = nan;
  UpdateElements(SomeFactors(rule_), RunOf(rule_, b, 0, 20));
  EXPECT_TRUE(std::isnan(b.master[3]));
  for (size_t i = 17; i < 20; ++i)
    EXPECT_EQ(std::isnan(b.master[i]), i < 17 + names.size()) << i - 17;
  EXPECT_FALSE(std::isnan(b.master[4]));
}

// Nothing is flushed to zero. The squares of these gradients vanish.
TEST_P(RuleKernel, GivesTheReferencesBitsForSubnormalNumbers) {
  constexpr size_t kElements = 70;
  Buffers b = RandomBuffers(kElements, 9);
  for (std::vector<float>* values : {&b.gradient, &b.master, &b.moment1, &b.moment2, &b.moment3}) {
    for (float& value : *values) value *= 0x1p-136F;
  }
  Buffers expected = b;
  Reference(SomeFactors(rule_), expected, 0, kElements);
  UpdateElements(SomeFactors(rule_), RunOf(rule_, b, 0, kElements));
  EXPECT_EQ(b, expected);
}

TEST_P(RuleKernel, MaximizeGivesTheBitsOfTheNegatedGradient) {
  constexpr size_t kElements = 70;
  Rule maximizing = rule_;
  maximizing.maximize = true;
  Buffers b = RandomBuffers(kElements, 9), negated = b;
  for (float& gradient : negated.gradient) gradient = -gradient;
  UpdateElements(SomeFactors(maximizing), RunOf(rule_, b, 0, kElements));
  UpdateElements(SomeFactors(rule_), RunOf(rule_, negated, 0, kElements));
  negated.gradient = b.gradient;
  EXPECT_EQ(b, negated);
}

std::string InstructionSetName(const testing::TestParamInfo<std::tuple<int64_t, Rule>>& test) {
  return std::string(hwy::TargetName(std::get<0>(test.param))) + "_" +
         RuleName(std::get<1>(test.param));
}

INSTANTIATE_TEST_SUITE_P(InstructionSets, RuleKernel,
                         testing::Combine(testing::ValuesIn(hwy::SupportedAndGeneratedTargets()),
                                          testing::ValuesIn(AllRules())),
                         InstructionSetName);

// Compares many steps with the rule in double, which uses the quantities of the paper rather than
// the kernel's factors.
TEST(AdamW, FollowsTheRuleInDouble) {
  constexpr size_t kElements = 257;
  const Rule rule = {.beta1 = 0.9, .beta2 = 0.999, .epsilon = 1e-8};
  constexpr double kDecay = 0.05;
  Buffers b = RandomBuffers(kElements, 10);
  std::fill(b.moment1.begin(), b.moment1.end(), 0.0F);
  std::fill(b.moment2.begin(), b.moment2.end(), 0.0F);
  std::vector<double> p(b.master.begin(), b.master.end()), m(kElements), v(kElements);
  std::mt19937 random(11);
  std::normal_distribution<float> normal;
  for (int64_t t = 1; t <= 50; ++t) {
    const double lr = 1e-2 / static_cast<double>(t);
    for (float& g : b.gradient) g = normal(random);
    const Update update = {
        .step = t, .learning_rate = lr, .weight_decay = kDecay, .gradient_scale = 0.5};
    UpdateElements(MakeFactors(rule, update), RunOf(rule, b, 0, kElements));
    for (size_t i = 0; i < kElements; ++i) {
      const double g = 0.5 * static_cast<double>(b.gradient[i]);
      p[i] *= 1 - lr * kDecay;
      m[i] = rule.beta1 * m[i] + (1 - rule.beta1) * g;
      v[i] = rule.beta2 * v[i] + (1 - rule.beta2) * g * g;
      const double m_hat = m[i] / (1 - std::pow(rule.beta1, t));
      const double v_hat = v[i] / (1 - std::pow(rule.beta2, t));
      p[i] -= lr * m_hat / (std::sqrt(v_hat) + rule.epsilon);
    }
  }
  for (size_t i = 0; i < kElements; ++i) {
    EXPECT_NEAR(b.master[i], p[i], 2e-6 * std::max(1.0, std::fabs(p[i]))) << i;
    EXPECT_NEAR(b.moment1[i], m[i], 1e-6) << i;
    EXPECT_NEAR(b.moment2[i], v[i], 1e-6) << i;
  }
}

// Compares with the results of torch.optim for the same gradients, which rule_golden.py recorded.
// Its parameters are fp32 too, so results differ by a few units in the last place, of the largest
// term where terms cancel.
class Golden : public testing::TestWithParam<const golden::Case*> {};

TEST_P(Golden, FollowsPyTorchStepForStep) {
  constexpr size_t kElements = golden::kElements;
  const golden::Case& expected = *GetParam();
  ASSERT_EQ(MomentNames(expected.rule).size(), expected.num_moments);
  Buffers b = RandomBuffers(kElements, 12);
  b.master.assign(std::begin(golden::kInitial), std::end(golden::kInitial));
  for (size_t slot = 0; slot < kMostMoments; ++slot) MomentOf(b, slot).assign(kElements, 0.0F);
  std::vector<float> farthest(kElements, 0.0F);  // where a parameter was: later steps may go back
  std::vector<float> largest(kElements, 0.0F);   // of the gradient and the weight decay so far
  for (int t = 0; t < golden::kSteps; ++t) {
    b.gradient.assign(std::begin(golden::kGradients[t]), std::end(golden::kGradients[t]));
    const Update update = {.step = t + 1,
                           .learning_rate = golden::kLearningRates[t],
                           .weight_decay = golden::kWeightDecay};
    const std::vector<float> before = b.master;
    UpdateElements(MakeFactors(expected.rule, update), RunOf(expected.rule, b, 0, kElements));
    for (size_t i = 0; i < kElements; ++i) {
      largest[i] = std::max({largest[i], std::fabs(b.gradient[i]), 0.1F * std::fabs(before[i])});
      const std::string where = "step " + std::to_string(t + 1) + " element " + std::to_string(i);
      const float p = expected.parameters[t][i];
      farthest[i] = std::max(farthest[i], std::fabs(before[i]));
      EXPECT_NEAR(b.master[i], p, 5e-7 * std::max(std::fabs(p), farthest[i])) << where;
      for (int moment = 0; moment < expected.num_moments; ++moment) {
        const float m = expected.moments[moment][t][i];
        const std::string_view name = MomentNames(expected.rule)[static_cast<size_t>(moment)];
        const float got = MomentOf(b, SlotOf(expected.rule.kind, name))[i];
        const bool is_square = MapOf(name) != CodeMap::kSigned;
        const float slack = is_square ? largest[i] * largest[i] : std::max(largest[i], 1.0F);
        EXPECT_NEAR(got, m, 5e-7 * std::max(std::fabs(m), slack)) << where;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Rules, Golden, testing::ValuesIn(golden::kCases),
                         [](const auto& test) { return std::string(test.param->name); });

TEST(MakeFactors, OfNumbersPastFloatAreInfinite) {
  const RuleFactors f =
      MakeFactors({.kind = RuleKind::kSgd}, {.learning_rate = 3e38, .weight_decay = 3e38});
  EXPECT_EQ(f.decay, -std::numeric_limits<float>::infinity());
  EXPECT_EQ(f.step_size, 3e38F);
}

}  // namespace
}  // namespace spillway::optim
