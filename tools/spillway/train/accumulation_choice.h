// SPDX-License-Identifier: Apache-2.0
//
// Which way a step's micro-batches pass through the model: what the planner says of both.

#ifndef SPILLWAY_TOOLS_SPILLWAY_TRAIN_ACCUMULATION_CHOICE_H_
#define SPILLWAY_TOOLS_SPILLWAY_TRAIN_ACCUMULATION_CHOICE_H_

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "src/plan/plan.h"
#include "src/plan/trace.h"
#include "tools/hf/config.h"
#include "tools/spillway/train/engine_flags.h"
#include "tools/trainer/model.h"

namespace spillway::command {

struct AccumulationChoice {
  trainer::AccumulationOrder order = trainer::AccumulationOrder::kMicroBatch;
  // What a planned step would move in each order; none: its leases do not fit.
  std::optional<plan::LinkBytes> micro_batch, layer;
  // So many of the step's micro-batches were planned: of very many a part, which shows enough.
  int64_t planned = 0;
  int64_t all = 0;
};

// `order` is that of the trace which takes less time, of equals the one that moves less, and of
// these micro-batch; of each order a step's trace. Links have the rates of plan::Rates. An error if
// neither fits.
absl::StatusOr<AccumulationChoice> ChooseOrder(const plan::Trace& of_micro_batch,
                                               const plan::Trace& of_layer,
                                               const plan::PlanOptions& options);

// The same of the steps of a model; where neither order can be planned, micro-batch. Links have the
// rates of plan::Rates, since nothing is measured yet; --policy demand is planned as lru.
AccumulationChoice CompareOrders(const hf::ModelConfig& config, trainer::ModelOptions options,
                                 const EngineFlags& flags);

// {"order":"layer","micro_batch":{"nvme_bytes":…,"device_bytes":…},"layer":{…}}, and
// "planned_micro_batches" if the bytes are of so many only.
nlohmann::ordered_json ToJson(const AccumulationChoice& choice);
std::string Describe(const AccumulationChoice& choice);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_TRAIN_ACCUMULATION_CHOICE_H_
