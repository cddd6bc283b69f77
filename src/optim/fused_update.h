// SPDX-License-Identifier: Apache-2.0
//
// Decode, rule, encode, in pieces that stay in the first level of cache: each byte of a parameter
// passes through memory once, whatever its format.

#ifndef SPILLWAY_OPTIM_FUSED_UPDATE_H_
#define SPILLWAY_OPTIM_FUSED_UPDATE_H_

#include <cstdint>

#include "spillway/optimizer.h"
#include "src/optim/rule_kernels.h"

namespace spillway::optim {

// A run of a parameter's elements as they rest, each operand from the run's first element on. None
// overlap.
struct FusedRun {
  int64_t num_elements = 0;
  uint64_t first_element = 0;  // in the tensor
  const void* gradient = nullptr;
  DType gradient_dtype = DType::kF32;
  float* master = nullptr;  // updated in place, as are the moments
  void* weight = nullptr;   // the new master, rounded to nearest even; null: not wanted
  DType weight_dtype = DType::kF16;
  StateFormat format = StateFormat::kF32;
  int num_moments = 0;
  void* moments[kMostMoments] = {};
  uint64_t rounding_keys[kMostMoments] = {};  // of moments that are rounded at random
};

void UpdateFused(const RuleFactors& factors, const FusedRun& run);

}  // namespace spillway::optim

#endif  // SPILLWAY_OPTIM_FUSED_UPDATE_H_
