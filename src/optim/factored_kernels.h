// SPDX-License-Identifier: Apache-2.0
//
// Adafactor's step where its second moment is a product of means over rows and columns: the
// arithmetic of elements of one row, vectorised. As in rule_kernels.h, the bits of an element
// depend on its operands alone.

#ifndef SPILLWAY_OPTIM_FACTORED_KERNELS_H_
#define SPILLWAY_OPTIM_FACTORED_KERNELS_H_

#include <cstdint>

#include "src/optim/rule_kernels.h"

namespace spillway::optim {

// A run within a row: v of an element is row · its column / mean.
struct FactoredRun {
  int64_t num_elements = 0;
  const float* gradient = nullptr;
  float row = 0;
  const float* columns = nullptr;  // of the run's elements
  float mean = 0;                  // of all rows, at least ε₁
};

// gradient_scale · gradient.
void ScaleElements(float scale, const float* from, int64_t n, float* to);

// u = s·gradient / √max(v, ε), with ε the factors' epsilon.
void FactoredStep(const RuleFactors& factors, const FactoredRun& run, float* step);

// p ← p·decay − step_size·u, with the same u.
void UpdateFactored(const RuleFactors& factors, const FactoredRun& run, float* master);

}  // namespace spillway::optim

#endif  // SPILLWAY_OPTIM_FACTORED_KERNELS_H_
