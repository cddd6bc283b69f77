// SPDX-License-Identifier: Apache-2.0
//
// The arithmetic of Adafactor's step on the elements of one row, vectorised, for a second moment
// that is a product of means over rows and columns. As in rule_kernels.h, the bits of an element
// depend on its operands alone. The passes over a matrix are in factored_update.h.

#ifndef SPILLWAY_OPTIM_FACTORED_KERNELS_H_
#define SPILLWAY_OPTIM_FACTORED_KERNELS_H_

#include <cstdint>

#include "src/optim/rule_kernels.h"

namespace spillway::optim {

// A run within a row. The v of an element is row · its column / mean.
struct FactoredRun {
  int64_t num_elements = 0;
  const float* gradient = nullptr;
  float row = 0;
  const float* columns = nullptr;  // means of the run's columns
  float mean = 0;                  // mean of all rows of the matrix, at least ε₁
};

// to = scale · from.
void ScaleElements(float scale, const float* from, int64_t n, float* to);

// step = u = s·gradient / √max(v, ε), where s is the factors' gradient_scale and ε their epsilon.
void FactoredStep(const RuleFactors& factors, const FactoredRun& run, float* step);

// p ← p·decay − step_size·u, with the same u.
void UpdateFactored(const RuleFactors& factors, const FactoredRun& run, float* master);

}  // namespace spillway::optim

#endif  // SPILLWAY_OPTIM_FACTORED_KERNELS_H_
