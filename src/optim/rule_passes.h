// SPDX-License-Identifier: Apache-2.0
//
// The passes that a rule makes over a parameter's tiles, and what each one leases. A rule that
// needs norms of the whole parameter reads the tiles first, in passes that write none of the
// parameter's elements. FORMATS.md lists the passes with their bytes.

#ifndef SPILLWAY_OPTIM_RULE_PASSES_H_
#define SPILLWAY_OPTIM_RULE_PASSES_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "spillway/optimizer.h"

namespace spillway::optim {

enum class PassKind : uint8_t {
  kUpdate,          // changes the master weight and the moments
  kNorms,           // LAMB, LARS, Adafactor's vectors: sums the squares that the rule needs
  kFactors,         // Adafactor's matrices, first: updates the means of rows and columns
  kFactoredNorm,    // second: sums the squares of the step
  kFactoredUpdate,  // third: changes the master weight
};

// The role of a tensor in an update. A 32-bit weight is its own master weight.
enum class OperandKind : uint8_t { kGradient, kMaster, kMoment, kWeight };
inline constexpr int kNumOperandKinds = 4;

struct Pass {
  PassKind kind = PassKind::kUpdate;
  // By OperandKind; nullopt: the pass does not lease the operand.
  std::optional<Access> access[kNumOperandKinds];

  std::optional<Access> AccessTo(OperandKind operand) const {
    return access[static_cast<size_t>(operand)];
  }
};

// Returns the passes in order. The last one updates the master weight, and reads the gradient for
// the last time.
std::vector<Pass> PassesOf(const Rule& rule, StateFormat format, const std::vector<int64_t>& shape);

// Sums of squares over a whole parameter before its update.
struct TensorSums {
  double weight = 0;
  double direction = 0;  // squares of DirectionOfElements, or of a factored step
};

// Returns RuleFactors::step_size for a parameter with these sums: lr times LAMB's ‖p‖/‖u‖ or LARS's
// η‖p‖/(‖g‖ + λ‖p‖), or Adafactor's α / max(1, RMS(u)/d). Computed in fp64, rounded once.
float StepSizeOf(const Rule& rule, const Update& update, const TensorSums& sums,
                 uint64_t num_elements);

}  // namespace spillway::optim

#endif  // SPILLWAY_OPTIM_RULE_PASSES_H_
