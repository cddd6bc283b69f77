// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/train/accumulation_choice.h"

#include <algorithm>
#include <array>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "src/base/bytes.h"
#include "src/base/status_macros.h"
#include "src/plan/make_plan.h"
#include "src/plan/simulate.h"
#include "src/plan/trace.h"
#include "tools/spillway/train/recorded_trace.h"
#include "tools/trainer/dry_run.h"

namespace spillway::command {
namespace {

using trainer::AccumulationOrder;

// Most passes of a micro-batch through a layer that are planned. Planning more takes longer than
// the answer is worth.
constexpr int64_t kMostPassesPlanned = 1 << 13;

// Sets where each tile rests. Tiles that rest on the device or in pinned memory get reserved frames
// there, one after another from offset 0.
void Place(const Placement& placement, uint64_t frame_alignment, plan::Trace* trace) {
  std::array<uint64_t, kNumTiers> used_bytes = {};
  for (plan::TraceTile& tile : trace->tiles) {
    tile.rest = placement[static_cast<size_t>(tile.role)];
    if (!tile.rest || *tile.rest == Tier::kNvme) continue;
    uint64_t& used = used_bytes[static_cast<size_t>(*tile.rest)];
    tile.reserved_frame = plan::ReservedFrame{*tile.rest, used};
    used += base::RoundUp(tile.size_bytes, frame_alignment);
  }
}

// Returns the budget, reduced to at most about twice the bytes of all tiles, because plans cannot
// compute with an unlimited one.
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

absl::StatusOr<plan::SimulatedStep> TryOrder(const plan::Trace& trace,
                                             const plan::PlanOptions& options) {
  SPILLWAY_ASSIGN_OR_RETURN(const plan::Plan plan, plan::MakePlan(trace, options));
  return plan::Simulate(trace, plan);
}

}  // namespace

absl::StatusOr<AccumulationChoice> ChooseOrder(const plan::Trace& of_micro_batch,
                                               const plan::Trace& of_layer,
                                               const plan::PlanOptions& options) {
  const auto micro_batch = TryOrder(of_micro_batch, options);
  const auto layer = TryOrder(of_layer, options);
  if (!micro_batch.ok() && !layer.ok()) return micro_batch.status();
  AccumulationChoice choice;
  if (micro_batch.ok()) choice.micro_batch = micro_batch->bytes;
  if (layer.ok()) choice.layer = layer->bytes;
  const auto cost = [](const plan::SimulatedStep& step) {
    return std::tuple(step.seconds, step.bytes.total());
  };
  if (layer.ok() && (!micro_batch.ok() || cost(*layer) < cost(*micro_batch)))
    choice.order = AccumulationOrder::kLayer;
  return choice;
}

AccumulationChoice CompareOrders(const hf::ModelConfig& config, trainer::ModelOptions options,
                                 const EngineFlags& flags) {
  const int64_t all = options.accumulate;
  options.accumulate = std::min(all, std::max<int64_t>(2, kMostPassesPlanned / config.num_layers));
  plan::PlanOptions budgets;
  const auto trace_in = [&](AccumulationOrder order) -> absl::StatusOr<plan::Trace> {
    options.accumulation_order = order;
    SPILLWAY_ASSIGN_OR_RETURN(const trainer::RecordedStep step,
                              trainer::RecordStep(config, options));
    plan::Trace trace = TraceOf(step);
    Place(PlacementOf(flags.placement).value_or(Placement()), budgets.frame_alignment, &trace);
    return trace;
  };
  const absl::StatusOr<plan::Trace> micro_batch = trace_in(AccumulationOrder::kMicroBatch);
  const absl::StatusOr<plan::Trace> layer = trace_in(AccumulationOrder::kLayer);
  AccumulationChoice choice;
  if (micro_batch.ok() && layer.ok()) {
    budgets.device_bytes = Limited(flags.device_bytes, *layer);
    budgets.pinned_bytes = Limited(flags.pinned_bytes, *layer);
    budgets.has_store = !flags.store.empty();
    choice = ChooseOrder(*micro_batch, *layer, budgets).value_or(AccumulationChoice());
  }
  choice.planned = options.accumulate;
  choice.all = all;
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
  if (choice.planned < choice.all) json["planned_micro_batches"] = choice.planned;
  return json;
}

std::string Describe(const AccumulationChoice& choice) {
  const bool is_layer = choice.order == AccumulationOrder::kLayer;
  return absl::StrCat(
      "micro-batches in ", is_layer ? "layer" : "micro-batch", " order; a step ",
      choice.planned < choice.all ? absl::StrCat("of ", choice.planned, " of them ") : "",
      "as planned: layer order ", DescribeBytes(choice.layer), "; micro-batch order ",
      DescribeBytes(choice.micro_batch));
}

}  // namespace spillway::command
