// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/accumulation_choice.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "src/base/bytes.h"
#include "src/plan/accumulation.h"
#include "src/plan/trace.h"
#include "tools/spillway/step_trace.h"

namespace spillway::command {
namespace {

using trainer::AccumulationOrder;

plan::Trace TraceIn(AccumulationOrder order, const hf::ModelConfig& config,
                    trainer::ModelOptions options, const Placement& placement) {
  options.accumulation_order = order;
  return TraceOfStep(config, options, placement);
}

// A budget that plans can reckon with: without a limit, as much as all tiles need.
uint64_t Limited(uint64_t bytes, const plan::Trace& trace) {
  uint64_t all = kMiB;
  for (const plan::TraceTile& tile : trace.tiles) all += 2 * (tile.size_bytes + 4 * kKiB);
  return std::min(bytes, all);
}

std::string DescribeBytes(const std::optional<plan::LinkBytes>& bytes) {
  if (!bytes) return "cannot be planned";
  return absl::StrCat(base::FormatBytes(bytes->nvme()), " over NVMe and ",
                      base::FormatBytes(bytes->device()), " to and from the device");
}

}  // namespace

AccumulationChoice CompareOrders(const hf::ModelConfig& config, trainer::ModelOptions options,
                                 const EngineFlags& flags) {
  AccumulationChoice choice;
  const auto placement = PlacementOf(flags.placement);
  if (!placement.ok()) return choice;
  const auto micro_batch = TraceIn(AccumulationOrder::kMicroBatch, config, options, *placement);
  const auto layer = TraceIn(AccumulationOrder::kLayer, config, options, *placement);
  plan::PlanOptions budgets;
  budgets.device_bytes = Limited(flags.device_bytes, layer);
  budgets.pinned_bytes = Limited(flags.pinned_bytes, layer);
  budgets.has_store = !flags.store.empty();
  budgets.policy = flags.policy == Policy::kOnDemand ? plan::Policy::kLru
                                                     : static_cast<plan::Policy>(flags.policy);
  const auto compared = plan::ChooseOrder(micro_batch, layer, budgets, plan::Rates());
  if (!compared.ok()) return choice;
  if (compared->micro_batch) choice.micro_batch = compared->micro_batch->bytes;
  if (compared->layer) choice.layer = compared->layer->bytes;
  if (compared->order == plan::AccumulationOrder::kLayer) choice.order = AccumulationOrder::kLayer;
  return choice;
}

nlohmann::ordered_json ToJson(const AccumulationChoice& choice) {
  const bool is_layer = choice.order == AccumulationOrder::kLayer;
  nlohmann::ordered_json json = {{"order", is_layer ? "layer" : "micro-batch"}};
  const auto add = [&](const char* name, const std::optional<plan::LinkBytes>& bytes) {
    if (bytes) json[name] = {{"nvme_bytes", bytes->nvme()}, {"device_bytes", bytes->device()}};
  };
  add("micro_batch", choice.micro_batch);
  add("layer", choice.layer);
  return json;
}

std::string Describe(const AccumulationChoice& choice) {
  const bool is_layer = choice.order == AccumulationOrder::kLayer;
  return absl::StrCat("micro-batches in ", is_layer ? "layer" : "micro-batch",
                      " order; a step as planned: layer order ", DescribeBytes(choice.layer),
                      "; micro-batch order ", DescribeBytes(choice.micro_batch));
}

}  // namespace spillway::command
