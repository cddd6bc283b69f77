// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/train/accumulation_choice.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "src/base/bytes.h"
#include "src/base/status_macros.h"
#include "src/plan/trace.h"
#include "src/simulation/virtual_engine.h"
#include "tools/spillway/step/recorded_trace.h"
#include "tools/trainer/dry_run.h"

namespace spillway::command {
namespace {

using trainer::AccumulationOrder;

// Most passes of a micro-batch through a layer that are planned. Planning more takes longer than
// the answer is worth.
constexpr int64_t kMostPassesPlanned = 1 << 13;

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

// Returns the step that repeats; none if the step cannot be planned.
absl::StatusOr<simulation::StepResult> TryOrder(const plan::Trace& trace,
                                                const simulation::SimulationOptions& options) {
  SPILLWAY_ASSIGN_OR_RETURN(const simulation::RepeatedStep simulated,
                            simulation::SimulateStep(trace, options));
  if (simulated.not_planned.empty()) return simulated.step;
  return absl::ResourceExhaustedError(simulated.not_planned);
}

// Times that differ by less than a hundredth count as equal: the machine's rates are not known.
bool IsCheaper(const simulation::StepResult& one, const simulation::StepResult& than) {
  constexpr double kEqual = 0.01;
  const double difference = one.seconds - than.seconds;
  if (std::abs(difference) > kEqual * std::max(one.seconds, than.seconds)) return difference < 0;
  return one.bytes.total() < than.bytes.total();
}

}  // namespace

absl::StatusOr<AccumulationChoice> ChooseOrder(const plan::Trace& of_micro_batch,
                                               const plan::Trace& of_layer,
                                               const simulation::SimulationOptions& options) {
  const auto micro_batch = TryOrder(of_micro_batch, options);
  const auto layer = TryOrder(of_layer, options);
  if (!micro_batch.ok() && !layer.ok()) return micro_batch.status();
  AccumulationChoice choice;
  if (micro_batch.ok()) choice.micro_batch = micro_batch->bytes;
  if (layer.ok()) choice.layer = layer->bytes;
  if (layer.ok() && (!micro_batch.ok() || IsCheaper(*layer, *micro_batch)))
    choice.order = AccumulationOrder::kLayer;
  return choice;
}

AccumulationChoice CompareOrders(const hf::ModelConfig& config, trainer::ModelOptions options,
                                 const EngineFlags& flags) {
  const int64_t all = options.accumulate;
  options.accumulate = std::min(all, std::max<int64_t>(2, kMostPassesPlanned / config.num_layers));
  const Placement placement = PlacementOf(flags.placement).value_or(Placement());
  const auto trace_in = [&](AccumulationOrder order) -> absl::StatusOr<plan::Trace> {
    options.accumulation_order = order;
    SPILLWAY_ASSIGN_OR_RETURN(
        const trainer::RecordedStep step,
        trainer::RecordStep(config, options, trainer::StepKind::kTraining, placement));
    return TraceOf(step);
  };
  const absl::StatusOr<plan::Trace> micro_batch = trace_in(AccumulationOrder::kMicroBatch);
  const absl::StatusOr<plan::Trace> layer = trace_in(AccumulationOrder::kLayer);
  AccumulationChoice choice;
  if (micro_batch.ok() && layer.ok()) {
    simulation::SimulationOptions simulated;
    simulated.budgets.device_bytes = Limited(flags.device_bytes, *layer);
    simulated.budgets.pinned_bytes = Limited(flags.pinned_bytes, *layer);
    simulated.budgets.has_store = !flags.store.empty();
    simulated.placement = placement;
    choice = ChooseOrder(*micro_batch, *layer, simulated).value_or(AccumulationChoice());
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
