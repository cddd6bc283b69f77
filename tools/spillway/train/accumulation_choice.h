// SPDX-License-Identifier: Apache-2.0
//
// The order in which a step's micro-batches pass through the model. A step is simulated in either
// order, and the cheaper one is chosen.

#ifndef SPILLWAY_TOOLS_SPILLWAY_TRAIN_ACCUMULATION_CHOICE_H_
#define SPILLWAY_TOOLS_SPILLWAY_TRAIN_ACCUMULATION_CHOICE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "src/plan/trace.h"
#include "src/plan/transfer.h"
#include "src/simulation/virtual_engine.h"
#include "tools/hf/config.h"
#include "tools/spillway/train/engine_flags.h"
#include "tools/trainer/model.h"

namespace spillway::command {

struct AccumulationChoice {
  trainer::AccumulationOrder order = trainer::AccumulationOrder::kMicroBatch;
  // The bytes that a planned step would move in each order; none: the step cannot be planned in
  // that order.
  std::optional<plan::LinkBytes> micro_batch, layer;
  // How many of the step's micro-batches were planned. If there are very many, planning some of
  // them is enough to compare the orders.
  int64_t planned = 0;
  int64_t all = 0;  // the step's micro-batches
};

// Chooses between the traces of one step in both orders: the one that takes less time; if the times
// are equal to a hundredth, the one that moves fewer bytes; if these are equal too, micro-batch
// order. Returns an error if neither trace can be planned.
absl::StatusOr<AccumulationChoice> ChooseOrder(const plan::Trace& of_micro_batch,
                                               const plan::Trace& of_layer,
                                               const simulation::SimulationOptions& options);

// Chooses the order for the steps of a model. If neither order can be planned, it is micro-batch
// order. Links have the default rates of simulation::Machine, because nothing is measured yet.
// Steps on demand are compared as if they were planned.
AccumulationChoice CompareOrders(const hf::ModelConfig& config, trainer::ModelOptions options,
                                 const EngineFlags& flags);

// {"order":"layer","micro_batch":{"nvme_bytes":…,"device_bytes":…},"layer":{…}}, and
// "planned_micro_batches" if the bytes are those of only some of the step's micro-batches.
nlohmann::ordered_json ToJson(const AccumulationChoice& choice);
std::string Describe(const AccumulationChoice& choice);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_TRAIN_ACCUMULATION_CHOICE_H_
