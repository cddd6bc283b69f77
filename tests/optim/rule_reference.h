// SPDX-License-Identifier: Apache-2.0
//
// The rules and the 16-bit formats, an element at a time and as plainly as they can be written:
// what the vectorised kernels must give bit for bit.

#ifndef SPILLWAY_TESTS_OPTIM_RULE_REFERENCE_H_
#define SPILLWAY_TESTS_OPTIM_RULE_REFERENCE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "spillway/optimizer.h"
#include "src/optim/rule_kernels.h"

namespace spillway::optim {

float FloatOfHalf(uint16_t half);

// Rounded to nearest even: the multiple of the value's last place that rint picks. Not for NaN.
uint16_t HalfOfFloat(float value);

float FloatOfBf16(uint16_t bits);

// Rounded to nearest even. Not for NaN.
uint16_t Bf16OfFloat(float value);

// The random bits of an element, by the key of the tensor and step.
uint32_t ReferenceWord(uint64_t key, uint64_t element);

// Rounded at random to bf16, by the key of the tensor and step.
uint16_t RandomlyRounded(float value, uint64_t key, uint64_t element);

// One element under a rule: its master weight and its moments in the kernels' order, and what a
// rule that needs norms takes them of, beside the master weight.
void UpdateReference(const RuleFactors& f, float gradient, float* master, float* moment1,
                     float* moment2, float* stepped_along);

void UpdateReference(const RuleFactors& f, float gradient, float* master, float* moment1,
                     float* moment2);

// Every rule, with and without momentum where it may have one.
std::vector<Rule> AllRules();

// "RmsPropMomentum", for the names of tests.
std::string RuleName(const Rule& rule);

}  // namespace spillway::optim

#endif  // SPILLWAY_TESTS_OPTIM_RULE_REFERENCE_H_
