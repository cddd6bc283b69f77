// SPDX-License-Identifier: Apache-2.0
//
// `train --resume --convert`: the store's optimizer state in the format that --state-format names,
// before the run goes on.

#ifndef SPILLWAY_TOOLS_SPILLWAY_TRAIN_STATE_CONVERSION_H_
#define SPILLWAY_TOOLS_SPILLWAY_TRAIN_STATE_CONVERSION_H_

#include <atomic>
#include <vector>

#include "absl/status/status.h"
#include "tools/hf/config.h"
#include "tools/spillway/train/train_flags.h"
#include "tools/trainer/train_state.h"

namespace spillway::command {

// Nothing but a note if the store has no commit, or one in that format. What conversion changed is
// noted. `given` is what the flags say of the run's numbers: a usage error, before anything is
// changed, if another of them differs from the store's. So is a --store-bytes that cannot hold both
// states; a failure, a disk that cannot. Cancelled if `stop` becomes true. After an error the store
// has what it had; only if the commit itself failed may it have the new state.
absl::Status ConvertStore(const TrainFlags& flags, const hf::ModelConfig& config,
                          const std::vector<trainer::FixedFlag>& given,
                          const std::atomic<bool>& stop);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_TRAIN_STATE_CONVERSION_H_
