// SPDX-License-Identifier: Apache-2.0
//
// Checks the arguments of an optimizer, and holds a checked parameter in the form in which the
// update pass takes it.

#ifndef SPILLWAY_OPTIM_PARAMETER_CHECKS_H_
#define SPILLWAY_OPTIM_PARAMETER_CHECKS_H_

#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spillway/optimizer.h"
#include "src/optim/block_codec.h"
#include "src/optim/factored_update.h"
#include "src/optim/rule_kernels.h"
#include "src/optim/rule_passes.h"
#include "src/optim/state_format.h"

namespace spillway::optim {

// A tensor that an update uses, or the caller's memory in its place.
struct Operand {
  TensorId tensor;
  std::byte* memory = nullptr;  // not null: the caller's memory, which holds all of it
  DType dtype = DType::kF32;
  OperandKind kind = OperandKind::kMaster;
  bool transient = false;
  uint64_t tile_elements = 0;  // elements of the parameter that a tile covers

  bool is_leased() const { return memory == nullptr; }
};

// A moment of a parameter.
struct Moment {
  std::string_view name;  // as MomentNames returns it
  size_t slot = 0;        // in RuleRun::moments
  CodeMap map = CodeMap::kSigned;
  std::string keying_name;  // keys its rounding, if the format rounds at random
};

// A parameter that passed all checks. Its operands are in the order in which the tiles are leased:
// the gradient, the master weight (a weight in fp32 is its own), the moments (encoded ones are one
// operand), and a 16-bit weight. If the master weight is split, the 16-bit weight takes its
// position, and the encoded state has the residuals.
struct CheckedParameter {
  uint64_t num_elements = 0;
  std::vector<TensorId> tensors;  // all that were given
  Rule rule;                      // whose state it has
  StateFormat format = StateFormat::kF32;
  std::vector<Operand> operands;  // empty: there is no gradient
  std::vector<Pass> passes;       // with what each one leases of the operands
  std::vector<Moment> moments;    // in the order of the state
  bool has_weight_beside_master = false;
  std::string residual_keying_name;  // keys the rounding of a split master weight
  EncodedRow row;                    // of encoded moments
  uint64_t row_elements = 0;         // elements of a row, which no tile cuts, or of a vector
  MatrixShape matrix;                // of a factored second moment
  Tier tier = Tier::kPinned;         // where its tiles are leased, and updated

  static constexpr size_t kGradient = 0;
  static constexpr size_t kMaster = 1;
  static constexpr size_t kFirstMoment = 2;

  // REQUIRES for the functions below: there are operands.
  const Operand& gradient() const { return operands[kGradient]; }
  const Operand& weight() const {
    return has_weight_beside_master ? operands.back() : operands[kMaster];
  }
  // Sets where the weight and the gradient lie from now on. A null argument changes nothing.
  void MoveTo(void* weight_memory, void* gradient_memory) {
    if (operands.empty()) return;
    Operand& moved = has_weight_beside_master ? operands.back() : operands[kMaster];
    if (weight_memory != nullptr) moved.memory = static_cast<std::byte*>(weight_memory);
    if (gradient_memory != nullptr)
      operands[kGradient].memory = static_cast<std::byte*>(gradient_memory);
  }
};

// Returns InvalidArgument, with what is wrong, if a value is out of range.
absl::Status CheckRule(const Rule& rule);
absl::Status CheckUpdate(const Update& update, const CheckedParameter& parameter);

// Checks a parameter's tensors and its rule, where `rule` is the optimizer's, and adds the tensors
// to `seen`, in which none may be yet. A tensor that is
// given twice would be updated twice, or its second lease would wait for the first. After an error
// `seen` is unchanged.
absl::StatusOr<CheckedParameter> CheckParameter(const Engine& engine, const Rule& rule,
                                                StateFormat format, const ParameterTensors& tensors,
                                                std::set<TensorId>* seen);

// Returns the error of CheckParameter for a parameter whose state tensors are not registered yet:
// `state` has the specs that they will have, and `tensors.state` is not used.
absl::Status CheckParameterBeforeState(const Engine& engine, const Rule& rule, StateFormat format,
                                       const ParameterTensors& tensors,
                                       std::span<const TensorSpec> state,
                                       const std::set<TensorId>& seen);

}  // namespace spillway::optim

#endif  // SPILLWAY_OPTIM_PARAMETER_CHECKS_H_
