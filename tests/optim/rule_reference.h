// SPDX-License-Identifier: Apache-2.0
//
// A simple reference for the rules and the 16-bit formats, one element at a time. The vectorised
// kernels must give the same bits.

#ifndef SPILLWAY_TESTS_OPTIM_RULE_REFERENCE_H_
#define SPILLWAY_TESTS_OPTIM_RULE_REFERENCE_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "spillway/optimizer.h"
#include "src/optim/rule_kernels.h"

namespace spillway::optim {

float FloatOfHalf(uint16_t half);

// Rounds to nearest even: to the multiple of the value's last place that rint picks. Not for NaN.
uint16_t HalfOfFloat(float value);

float FloatOfBf16(uint16_t bits);

// Rounds to nearest even. Not for NaN.
uint16_t Bf16OfFloat(float value);

// Returns the random bits of an element. The key is that of the tensor and the step.
uint32_t ReferenceWord(uint64_t key, uint64_t element);

// Rounds to bf16 at random. The key is that of the tensor and the step.
uint16_t RandomlyRounded(float value, uint64_t key, uint64_t element);

// Updates one element: its master weight, and its moments, each at its SlotOf. A rule that takes
// norms takes them of the master weight and of `stepped_along`, which this sets.
void UpdateReference(const RuleFactors& f, float gradient, float* master,
                     const std::array<float*, kMostMoments>& moments, float* stepped_along);

// Returns every rule, with and without each variant that it has.
std::vector<Rule> AllRules();

// For the names of tests, such as "rmsprop_momentum_centered".
std::string RuleName(const Rule& rule);

}  // namespace spillway::optim

#endif  // SPILLWAY_TESTS_OPTIM_RULE_REFERENCE_H_
