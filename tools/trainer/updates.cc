// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/updates.h"

#include <cstddef>
#include <span>

#include "src/base/status_macros.h"

namespace spillway::trainer {

absl::StatusOr<ListedUpdates> AddTrained(Optimizer* optimizer, const ModelOptions& options,
                                         std::span<const Parameter> parameters,
                                         double weight_decay) {
  ListedUpdates listed;
  for (const Parameter& parameter : parameters) {
    const TensorsOfParameter& of = parameter.tensors;
    if (!of.is_trained()) continue;
    SPILLWAY_ASSIGN_OR_RETURN(
        const size_t number,
        optimizer->Add({.weight = of.weight, .gradient = of.gradient, .state = of.state}));
    const bool is_decayed = options.groups.IsDecayed(parameter.name);
    listed.updates.push_back({.parameter = number, .weight_decay = is_decayed ? weight_decay : 0});
    listed.rate_factors.push_back(options.groups.RateFactorOf(parameter.name));
  }
  return listed;
}

}  // namespace spillway::trainer
