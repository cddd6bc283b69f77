// SPDX-License-Identifier: Apache-2.0
//
// The fixture of kernel tests: each test runs on every instruction set that the machine has.

#ifndef SPILLWAY_TESTS_TRAINER_EACH_TARGET_H_
#define SPILLWAY_TESTS_TRAINER_EACH_TARGET_H_

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "hwy/targets.h"

namespace spillway::trainer {

inline constexpr float kInfinity = std::numeric_limits<float>::infinity();
inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();

inline std::vector<float> Random(size_t n, uint64_t seed, float scale = 1.0f) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(n);
  for (float& value : values) value = normal(random);
  return values;
}

class EachTarget : public testing::TestWithParam<int64_t> {
 protected:
  void SetUp() override { hwy::SetSupportedTargetsForTest(GetParam()); }
  void TearDown() override { hwy::SetSupportedTargetsForTest(0); }
};

// Returns the instruction sets to test, for INSTANTIATE_TEST_SUITE_P.
inline auto TargetsHere() {
  std::vector<int64_t> targets;
  int64_t left = hwy::SupportedTargets() & HWY_TARGETS;
  for (; left != 0; left &= left - 1) targets.push_back(left & -left);
  return testing::ValuesIn(targets);
}

inline std::string NameOfTarget(const testing::TestParamInfo<int64_t>& test) {
  return hwy::TargetName(test.param);
}

}  // namespace spillway::trainer

#endif  // SPILLWAY_TESTS_TRAINER_EACH_TARGET_H_
