// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/train/predicted_step.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "src/base/bytes.h"
#include "src/simulation/virtual_engine.h"

namespace spillway::command {
namespace {

using plan::Transfer;

// A step is simulated if that takes a fraction of its own seconds: a simulation goes over some
// million events a second, and over each event of the step a few times.
constexpr double kEventsASecond = 50'000;
constexpr size_t kLeastEvents = 20'000, kMostEvents = size_t{1} << 20;
constexpr int kMostSimulatedSteps = 5;

size_t MostEvents(double seconds) {
  return std::clamp(static_cast<size_t>(seconds * kEventsASecond), kLeastEvents, kMostEvents);
}

plan::LinkBytes BytesOf(const Traffic& nvme, const Traffic& pinned) {
  plan::LinkBytes bytes;
  bytes[Transfer::kRead] = nvme.read_bytes;
  bytes[Transfer::kWrite] = nvme.written_bytes;
  bytes[Transfer::kCopyIn] = pinned.read_bytes;
  bytes[Transfer::kCopyOut] = pinned.written_bytes;
  return bytes;
}

}  // namespace

void AddJsonBytes(const std::string& prefix, const plan::LinkBytes& bytes,
                  nlohmann::ordered_json* json) {
  (*json)[prefix + "read_bytes"] = {{"nvme", bytes[Transfer::kRead]},
                                    {"pinned", bytes[Transfer::kCopyIn]}};
  (*json)[prefix + "written_bytes"] = {{"nvme", bytes[Transfer::kWrite]},
                                       {"pinned", bytes[Transfer::kCopyOut]}};
}

std::string DescribeMoved(const plan::LinkBytes& bytes) {
  return absl::StrFormat("%s over NVMe and %s to and from the device",
                         base::FormatBytes(bytes.nvme()), base::FormatBytes(bytes.device()));
}

void LastStep::Take(const trainer::StepRecord& record, Engine* engine) {
  if (record.evaluation || record.evaluation_failed) {
    if (!recorded_) unknown_ = "an evaluation follows each step";
    return;
  }
  absl::StatusOr<engine::RecordedStep> step = engine::LastStep(engine, MostEvents(record.seconds));
  if (!step.ok()) {
    unknown_ = std::string(step.status().message());
    return;
  }
  // Only such a step can be compared: the others begin or end a plan.
  if (record.plan.moved_bytes() == 0 && record.plan.planned_bytes != 0) {
    if (!recorded_) unknown_ = "no step has followed its plan from beginning to end";
    return;
  }
  recorded_ = *std::move(step);
  record_ = record;
}

PredictedStep LastStep::Predict() const {
  PredictedStep predicted{.unknown = unknown_};
  if (!recorded_) return predicted;
  simulation::SimulationOptions options = simulation::OptionsOf(*recorded_);
  options.most_steps = kMostSimulatedSteps;
  const auto simulated = simulation::SimulateStep(recorded_->trace, options);
  if (!simulated.ok() || !simulated->not_planned.empty()) {
    predicted.unknown =
        simulated.ok() ? simulated->not_planned : std::string(simulated.status().message());
    return predicted;
  }
  return {.step = record_.step,
          .seconds = simulated->step.seconds,
          .bytes = simulated->step.bytes,
          .real_seconds = record_.seconds,
          .real_bytes = BytesOf(record_.plan.nvme, record_.plan.pinned),
          .unknown = ""};
}

nlohmann::ordered_json ToJson(const PredictedStep& predicted) {
  if (!predicted.unknown.empty()) return {{"unknown", predicted.unknown}};
  nlohmann::ordered_json json = {{"step", predicted.step}, {"step_s", predicted.seconds}};
  AddJsonBytes("", predicted.bytes, &json);
  json["real_step_s"] = predicted.real_seconds;
  AddJsonBytes("real_", predicted.real_bytes, &json);
  return json;
}

std::string ToText(const PredictedStep& predicted) {
  if (!predicted.unknown.empty())
    return absl::StrCat("predicted: nothing, because ", predicted.unknown, "\n");
  return absl::StrFormat(
      "predicted: step %d in %.3f s, and it took %.3f s; %s, and it moved %s (simulated with this "
      "run's rates and the step's own computing)\n",
      predicted.step, predicted.seconds, predicted.real_seconds, DescribeMoved(predicted.bytes),
      predicted.bytes == predicted.real_bytes ? "the same" : DescribeMoved(predicted.real_bytes));
}

}  // namespace spillway::command
