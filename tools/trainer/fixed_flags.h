// SPDX-License-Identifier: Apache-2.0
//
// The flags of the command that determine the numbers of a run, with their values. A store records
// them, and a resume is checked against them (CheckSameNumbers).

#ifndef SPILLWAY_TOOLS_TRAINER_FIXED_FLAGS_H_
#define SPILLWAY_TOOLS_TRAINER_FIXED_FLAGS_H_

#include <vector>

#include "tools/hf/config.h"
#include "tools/trainer/token_data.h"
#include "tools/trainer/train_state.h"
#include "tools/trainer/trainer.h"

namespace spillway::trainer {

// Returns the flags of a run. The number of total steps is not among them: under the cosine
// schedule a resume with another number follows the new curve from then on. Checkpointing, the
// accumulation order, budgets and how bytes move change no number. A flag that was introduced later
// is left out if its value is the earlier behaviour, so that older stores can be resumed:
// --optimizer adamw, --state-format fp32, --device host, no variant of a rule, no parameter
// patterns, no learning rate scaling.
std::vector<FixedFlag> FixedFlags(const TrainerOptions& options, const hf::ModelConfig& config,
                                  const TokenData& train_data, int num_threads);

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_FIXED_FLAGS_H_
