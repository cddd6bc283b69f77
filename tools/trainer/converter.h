// SPDX-License-Identifier: Apache-2.0
//
// Brings the optimizer state of a stored run into another format, as one commit: before it the
// store has the old state, after it the new one, and never both in part.

#ifndef SPILLWAY_TOOLS_TRAINER_CONVERTER_H_
#define SPILLWAY_TOOLS_TRAINER_CONVERTER_H_

#include <atomic>
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

// The format of the state of a store's run: what its --state-format says, or what was so before
// there was that flag.
absl::StatusOr<StateFormat> FormatOf(const std::vector<FixedFlag>& fixed);
// The same flags with another format.
std::vector<FixedFlag> WithFormat(std::vector<FixedFlag> fixed, StateFormat format);

// Converts the state of the engine's last commit, which `state` describes, into the format that
// `options` has, and commits it with `state` changed accordingly. The engine must have no tensors
// yet, and its disk room for both states; it is of no use afterwards but for Stats. Cancelled if
// `stop` becomes true, which is asked between parameters. DataLoss: the commit lacks a tensor.
// After an error the store has what it had; only if the commit itself failed may it have the new
// state.
absl::StatusOr<StateChange> ConvertRun(Engine* engine, const hf::ModelConfig& config,
                                       const ModelOptions& options, TrainState state,
                                       const std::atomic<bool>& stop);

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_CONVERTER_H_
