// SPDX-License-Identifier: Apache-2.0
//
// Implements the public Optimizer. It keeps the checked parameters, and a step updates those that
// it names. parameter_checks.h has the checks, and update_pass.h the passes over tiles.

#include "spillway/optimizer.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "src/base/default_floats.h"
#include "src/base/interrupt.h"
#include "src/base/status_macros.h"
#include "src/optim/device_update.h"
#include "src/optim/parameter_checks.h"
#include "src/optim/state_specs.h"
#include "src/optim/update_pass.h"

namespace spillway {
namespace optim {
namespace {

class StreamingOptimizer final : public Optimizer {
 public:
  StreamingOptimizer(Engine* engine, ThreadPool* pool, const Rule& rule, StateFormat format,
                     Stream* stream)
      : engine_(engine), pool_(pool), rule_(rule), format_(format), stream_(stream) {}

  absl::StatusOr<size_t> Add(const ParameterTensors& tensors) override {
    SPILLWAY_ASSIGN_OR_RETURN(CheckedParameter parameter,
                              CheckParameter(*engine_, rule_, format_, tensors, &seen_));
    if (UpdatesOnDevice(parameter, tensors.state)) parameter.tier = Tier::kDevice;
    min_pinned_bytes_ = std::max(min_pinned_bytes_, PinnedBytesFor(*engine_, parameter));
    min_device_bytes_ = std::max(min_device_bytes_, DeviceBytesFor(*engine_, parameter));
    parameters_.push_back(std::move(parameter));
    return parameters_.size() - 1;
  }

  absl::Status Remove(size_t parameter) override {
    SPILLWAY_RETURN_IF_ERROR(CheckKnown(parameter));
    for (const TensorId id : parameters_[parameter]->tensors) seen_.erase(id);
    parameters_[parameter] = std::nullopt;
    return absl::OkStatus();
  }

  absl::Status CheckAdd(const ParameterTensors& tensors,
                        std::span<const TensorSpec> state) const override {
    return CheckParameterBeforeState(*engine_, rule_, format_, tensors, state, seen_);
  }

  absl::StatusOr<std::vector<Use>> Uses(std::span<const size_t> parameters) const override {
    std::vector<Use> uses;
    for (const size_t parameter : parameters) {
      SPILLWAY_RETURN_IF_ERROR(CheckKnown(parameter));
      AppendUses(*parameters_[parameter], &uses);
    }
    return uses;
  }

  absl::Status Check(std::span<const Update> updates) const override {
    std::vector<bool> is_named(parameters_.size());
    for (const Update& update : updates) {
      SPILLWAY_RETURN_IF_ERROR(CheckKnown(update.parameter));
      SPILLWAY_RETURN_IF_ERROR(CheckUpdate(update, *parameters_[update.parameter]));
      SPILLWAY_RETURN_IF_ERROR(CheckMemory(update));
      if (is_named[update.parameter]) {
        return absl::InvalidArgumentError(
            absl::StrCat("optimizer: parameter ", update.parameter, " is named twice in a step"));
      }
      is_named[update.parameter] = true;
    }
    return absl::OkStatus();
  }

  void MoveMemory(std::span<const Update> updates) override {
    for (const Update& update : updates)
      parameters_[update.parameter]->MoveTo(update.weight_memory, update.gradient_memory);
  }

  absl::Status Step(std::span<const Update> updates) override {
    SPILLWAY_RETURN_IF_ERROR(Check(updates));
    const base::Uninterrupted whole;
    const base::DefaultFloats floats;  // the norms and step sizes are computed on this thread
    // Before any update: if one fails, none of the others keeps an address that the caller may
    // free.
    MoveMemory(updates);
    for (const Update& update : updates) {
      const CheckedParameter& parameter = *parameters_[update.parameter];
      SPILLWAY_RETURN_IF_ERROR(UpdateParameter(engine_, pool_, stream_, parameter,
                                               update.rule.value_or(parameter.rule), update));
    }
    return absl::OkStatus();
  }

  uint64_t min_pinned_bytes() const override { return min_pinned_bytes_; }
  uint64_t min_device_bytes() const override { return min_device_bytes_; }

 private:
  bool UpdatesOnDevice(const CheckedParameter& parameter, std::span<const TensorId> state) const {
    return stream_ != nullptr && HasKernels(parameter.rule) &&
           std::ranges::all_of(parameter.operands, &Operand::is_leased) &&
           std::ranges::all_of(state, [this](TensorId id) { return RestsOnDevice(*engine_, id); });
  }

  absl::Status CheckKnown(size_t parameter) const {
    if (parameter < parameters_.size() && parameters_[parameter]) return absl::OkStatus();
    if (parameter < parameters_.size()) {
      return absl::NotFoundError(absl::StrCat("optimizer: parameter ", parameter, " was removed"));
    }
    return absl::NotFoundError(absl::StrCat("optimizer: there is no parameter ", parameter, "; ",
                                            parameters_.size(), " were added"));
  }

  absl::Status CheckMemory(const Update& update) const {
    const CheckedParameter& parameter = *parameters_[update.parameter];
    if (parameter.operands.empty()) return absl::OkStatus();
    const bool weight_moves = update.weight_memory != nullptr;
    const bool gradient_moves = update.gradient_memory != nullptr;
    const char* const what = weight_moves && parameter.weight().is_leased()       ? "weight"
                             : gradient_moves && parameter.gradient().is_leased() ? "gradient"
                                                                                  : nullptr;
    if (what != nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("optimizer: parameter ", update.parameter, " has its ", what,
                       " in the engine: an update cannot say where in memory it lies"));
    }
    const auto is_aligned = [](const void* memory, const Operand& operand) {
      return reinterpret_cast<uintptr_t>(memory) % ElementBytes(operand.dtype) == 0;
    };
    if (is_aligned(update.weight_memory, parameter.weight()) &&
        is_aligned(update.gradient_memory, parameter.gradient()))
      return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("optimizer: the memory of parameter ", update.parameter,
                     " lies at an address that is no multiple of its elements' bytes"));
  }

  Engine* const engine_;
  ThreadPool* const pool_;
  const Rule rule_;
  const StateFormat format_;
  Stream* const stream_;  // null: all parameters are updated on the CPU
  std::vector<std::optional<CheckedParameter>> parameters_;  // nullopt: it was removed
  std::set<TensorId> seen_;
  uint64_t min_pinned_bytes_ = 0;
  uint64_t min_device_bytes_ = 0;
};

}  // namespace
}  // namespace optim

absl::StatusOr<std::unique_ptr<Optimizer>> Optimizer::Create(Engine* engine, ThreadPool* pool,
                                                             const Rule& rule, StateFormat format,
                                                             Stream* stream) {
  SPILLWAY_RETURN_IF_ERROR(optim::CheckRule(rule));
  SPILLWAY_RETURN_IF_ERROR(optim::CheckFormat(rule, format));
  return std::make_unique<optim::StreamingOptimizer>(engine, pool, rule, format, stream);
}

}  // namespace spillway
