// SPDX-License-Identifier: Apache-2.0
//
// Checks of what an optimizer is given, and a parameter in the form in which the pass takes it.

#ifndef SPILLWAY_OPTIM_PARAMETER_CHECKS_H_
#define SPILLWAY_OPTIM_PARAMETER_CHECKS_H_

#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
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

// One of the tensors that an update touches, or memory of the caller's.
struct Operand {
  TensorId tensor;
  std::byte* memory = nullptr;  // not null: the caller's, and whole
  DType dtype = DType::kF32;
  OperandKind kind = OperandKind::kMaster;
  bool transient = false;
  uint64_t tile_elements = 0;  // elements of the parameter that a tile covers

  bool is_leased() const { return memory == nullptr; }
};

// A parameter that passed all checks. Its operands are in the order in which a tile's are leased:
// the gradient, the master weight (which a weight in fp32 is itself), the moments (encoded ones are
// one operand), and a weight of 16 bits. Where the master weight is split, the 16-bit weight stands
// in its place, and what is encoded has the rest of it.
struct CheckedParameter {
  uint64_t num_elements = 0;
  StateFormat format = StateFormat::kF32;
  std::vector<Operand> operands;  // empty: it has no gradient
  std::vector<Pass> passes;       // what the rule leases of them, pass by pass
  size_t num_moments = 0;
  bool has_weight_beside_master = false;
  // Of state tensors whose elements are rounded at random, which their names key: the moments, or
  // the one tensor of a state that is compact.
  std::vector<std::string> keying_names;
  EncodedRow row;  // of encoded moments
  CodeMap maps[kMostMoments] = {};
  uint64_t row_elements = 0;  // of a row that no tile cuts, or of a vector
  MatrixShape matrix;         // of a factored second moment

  static constexpr size_t kGradient = 0;
  static constexpr size_t kMaster = 1;
  static constexpr size_t kFirstMoment = 2;

  // REQUIRES for these: there are operands.
  const Operand& gradient() const { return operands[kGradient]; }
  const Operand& weight() const {
    return has_weight_beside_master ? operands.back() : operands[kMaster];
  }
  // What is not null lies there from now on.
  void MoveTo(void* weight_memory, void* gradient_memory) {
    if (operands.empty()) return;
    Operand& moved = has_weight_beside_master ? operands.back() : operands[kMaster];
    if (weight_memory != nullptr) moved.memory = static_cast<std::byte*>(weight_memory);
    if (gradient_memory != nullptr)
      operands[kGradient].memory = static_cast<std::byte*>(gradient_memory);
  }
};

// Each is InvalidArgument and says what is wrong.
absl::Status CheckRule(const Rule& rule);
absl::Status CheckUpdate(const Update& update, const Rule& rule);

// Also adds the tensors to `seen`, in which none may be yet: one that two places name would be
// updated twice, or wait for itself.
absl::StatusOr<CheckedParameter> CheckParameter(const Engine& engine, const Rule& rule,
                                                StateFormat format, const ParameterTensors& tensors,
                                                std::set<TensorId>* seen);

}  // namespace spillway::optim

#endif  // SPILLWAY_OPTIM_PARAMETER_CHECKS_H_
