// SPDX-License-Identifier: Apache-2.0
//
// The passes that a rule makes over a parameter's tiles, and what each leases. A rule that needs
// norms of the whole parameter first reads its tiles for them in passes of their own, which write
// none of the parameter's elements: those of FORMATS.md, with their bytes.

#ifndef SPILLWAY_OPTIM_RULE_PASSES_H_
#define SPILLWAY_OPTIM_RULE_PASSES_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "spillway/optimizer.h"

namespace spillway::optim {

enum class PassKind : uint8_t {
  kUpdate,          // changes master weight and moments
  kNorms,           // of LAMB, LARS, Adafactor's vectors: sums the squares that the rule needs
  kFactors,         // of Adafactor's matrices: updates the means of rows and columns
  kFactoredNorm,    // then sums the squares of the step
  kFactoredUpdate,  // then changes the master weight
};

// What a tensor is to an update; a weight of 32 bits is its own master.
enum class OperandKind : uint8_t { kGradient, kMaster, kMoment, kWeight };
inline constexpr int kNumOperandKinds = 4;

struct Pass {
  PassKind kind = PassKind::kUpdate;
  // By OperandKind; none: the pass leases none of it.
  std::optional<Access> access[kNumOperandKinds];

  std::optional<Access> AccessTo(OperandKind operand) const {
    return access[static_cast<size_t>(operand)];
  }
};

// In order; the last one updates the master weight and is the last that needs the gradient.
std::vector<Pass> PassesOf(const Rule& rule, StateFormat format, const std::vector<int64_t>& shape);

// Sums of squares over a whole parameter before its update.
struct TensorSums {
  double weight = 0;
  double direction = 0;  // of what DirectionOfElements gives, or a factored step
};

// RuleFactors::step_size of a parameter with these sums: lr times LAMB's ‖p‖/‖u‖ or LARS's
// η‖p‖/(‖g‖ + λ‖p‖), or Adafactor's α / max(1, RMS(u)/d). In fp64, rounded once.
float StepSizeOf(const Rule& rule, const Update& update, const TensorSums& sums,
                 uint64_t num_elements);

}  // namespace spillway::optim

#endif  // SPILLWAY_OPTIM_RULE_PASSES_H_
