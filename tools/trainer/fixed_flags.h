// SPDX-License-Identifier: Apache-2.0
//
// What decides the numbers of a run, as flags of the command with their values: a store keeps them,
// and a resume is held against them (CheckSameNumbers).

#ifndef SPILLWAY_TOOLS_TRAINER_FIXED_FLAGS_H_
#define SPILLWAY_TOOLS_TRAINER_FIXED_FLAGS_H_

#include <vector>

#include "tools/hf/config.h"
#include "tools/trainer/token_data.h"
#include "tools/trainer/train_state.h"
#include "tools/trainer/trainer.h"

namespace spillway::trainer {

// The total steps are not among them: under the cosine schedule a resume with other steps follows
// the new curve from there on. Checkpointing, the accumulation's order, budgets and the way of the
// bytes change no number. A flag that came later is left out where it says what was so before, so
// that older stores resume: --optimizer adamw, --state-format fp32, and no patterns.
std::vector<FixedFlag> FixedFlags(const TrainerOptions& options, const hf::ModelConfig& config,
                                  const TokenData& train_data, int num_threads);

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_FIXED_FLAGS_H_
