// SPDX-License-Identifier: Apache-2.0
//
// Converts the optimizer state of a stored run into another format, as one commit. Before the
// commit the store has the old state, after it the new one, and never a mixture.

#ifndef SPILLWAY_TOOLS_TRAINER_CONVERTER_H_
#define SPILLWAY_TOOLS_TRAINER_CONVERTER_H_

#include <atomic>
#include <cstddef>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spillway/engine.h"
#include "spillway/optimizer.h"
#include "spillway/state_conversion.h"
#include "tools/hf/config.h"
#include "tools/trainer/model.h"
#include "tools/trainer/train_state.h"

namespace spillway::trainer {

// Returns the state format of a store's run: the value of its --state-format, or fp32 if the flag
// is not stored.
absl::StatusOr<StateFormat> FormatOf(const std::vector<FixedFlag>& fixed);
// Returns the flags with `format` as their state format.
std::vector<FixedFlag> WithFormat(std::vector<FixedFlag> fixed, StateFormat format);

// Converts the state of the engine's last commit, which `state` describes, into the format of
// `options`, keeping its tiles, and commits it with `state` changed accordingly. The engine must
// have no tensors yet, and its store must have room for both states; afterwards the engine may be
// used for Stats only. Cancelled if `stop` becomes true, which is checked before each parameter.
// DataLoss if the commit lacks a tensor. `on_parameter` is called after each parameter with the
// number of parameters done and of all. After an error the store has the old state, or possibly the
// new one if the commit itself failed.
absl::StatusOr<StateChange> ConvertRun(
    Engine* engine, const hf::ModelConfig& config, const ModelOptions& options, TrainState state,
    const std::atomic<bool>& stop, const std::function<void(size_t, size_t)>& on_parameter = {});

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_CONVERTER_H_
