// SPDX-License-Identifier: Apache-2.0
//
// The updates of a training step: one for each trained parameter, in the order of the list of
// parameters.

#ifndef SPILLWAY_TOOLS_TRAINER_UPDATES_H_
#define SPILLWAY_TOOLS_TRAINER_UPDATES_H_

#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "spillway/optimizer.h"
#include "tools/trainer/model.h"

namespace spillway::trainer {

struct ListedUpdates {
  std::vector<Update> updates;       // without what changes from step to step
  std::vector<double> rate_factors;  // of the learning rate, by update
};

// Adds all trained parameters to the optimizer, and lists their updates. `weight_decay` is that of
// parameters that decay.
absl::StatusOr<ListedUpdates> AddTrained(Optimizer* optimizer, const ModelOptions& options,
                                         std::span<const Parameter> parameters,
                                         double weight_decay);

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_UPDATES_H_
