// SPDX-License-Identifier: Apache-2.0
//
// `train --resume --convert`: converts the store's optimizer state to the format that
// --state-format names, before the run continues.

#ifndef SPILLWAY_TOOLS_SPILLWAY_TRAIN_STATE_CONVERSION_H_
#define SPILLWAY_TOOLS_SPILLWAY_TRAIN_STATE_CONVERSION_H_

#include <atomic>
#include <vector>

#include "absl/status/status.h"
#include "tools/hf/config.h"
#include "tools/spillway/train/train_flags.h"
#include "tools/trainer/train_state.h"

namespace spillway::command {

// Converts the state and reports on stderr how much the conversion changed. Changes nothing if the
// store has no commit; if the state has that format already, a note says so. `given` are the flags
// that decide the run's numbers. UsageError, before anything is changed: a flag in `given` other
// than the format differs from the store's, or --store-bytes cannot hold both states. If the disk
// cannot hold both, the error is a failure, not a usage error. Cancelled if `stop` becomes true.
// After an error the store has its old state, except that it may have the new state if the commit
// itself failed.
absl::Status ConvertStore(const TrainFlags& flags, const hf::ModelConfig& config,
                          const std::vector<trainer::FixedFlag>& given,
                          const std::atomic<bool>& stop);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_TRAIN_STATE_CONVERSION_H_
