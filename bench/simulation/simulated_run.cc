// SPDX-License-Identifier: Apache-2.0
//
// Question: does a simulation of a run say what the run did? It trains as `spillway train` with the
// same flags, and records each step: its leases, the computing between them, its bytes and seconds.
// Then a VirtualEngine executes the same steps with the rates that the run has shown. Limits: in
// steps 4 and later the bytes are equal, and the median of the seconds differs by at most 15%.
// One JSON object on stdout. The driver of six configurations is simulated_runs.
//
//   build/release/bin/simulated_run --model DIR --data DIR --store DIR --steps 12 ...

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <iostream>
#include <memory>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "spillway/thread_pool.h"
#include "src/base/status_macros.h"
#include "src/engine/recorded_step.h"
#include "src/simulation/virtual_engine.h"
#include "tools/spillway/command/arguments.h"
#include "tools/spillway/train/engine_flags.h"
#include "tools/spillway/train/train_flags.h"
#include "tools/trainer/token_data.h"
#include "tools/trainer/trainer.h"
#include "tools/trainer/weight_source.h"

namespace spillway::bench {
namespace {

using plan::Transfer;

struct Step {
  trainer::StepRecord record;
  engine::RecordedStep recorded;
};

absl::StatusOr<std::vector<Step>> RunForReal(const command::TrainFlags& flags) {
  SPILLWAY_ASSIGN_OR_RETURN(const hf::ModelConfig config, hf::ReadModelConfig(flags.model));
  trainer::TrainerOptions options = flags.trainer;
  options.durable = false;
  options.model.training = true;
  options.model.accumulation_order =
      flags.accumulation_order.value_or(trainer::AccumulationOrder::kMicroBatch);
  SPILLWAY_ASSIGN_OR_RETURN(
      const auto data,
      trainer::TokenData::Open(flags.data, "train", config.vocab_size, options.model.sequence));
  trainer::WeightSource source = trainer::RandomWeights(options.seed);
  if (!flags.random_init) {
    SPILLWAY_ASSIGN_OR_RETURN(source, trainer::OpenFolderWeights(flags.model, config));
  }
  const std::atomic<bool> stop = false;
  const command::StoreNeed need = {.state = trainer::ModelStateBytes(config, options.model)};
  SPILLWAY_ASSIGN_OR_RETURN(const auto engine,
                            command::OpenEngine(flags.engine, OpenMode::kScratch, need, stop));
  ThreadPool pool(static_cast<int>(flags.engine.threads));
  SPILLWAY_ASSIGN_OR_RETURN(
      const auto trainer, trainer::Trainer::Create(engine.get(), &pool, config, options, data.get(),
                                                   nullptr, source, std::nullopt));
  std::vector<Step> steps;
  const auto observe = [&](const trainer::StepRecord& record) -> absl::Status {
    SPILLWAY_ASSIGN_OR_RETURN(engine::RecordedStep recorded,
                              engine::LastStep(engine.get(), SIZE_MAX));
    steps.push_back({record, std::move(recorded)});
    return absl::OkStatus();
  };
  SPILLWAY_RETURN_IF_ERROR(trainer->Run(observe, stop).status());
  return steps;
}

nlohmann::ordered_json ToJson(const Traffic& nvme, const Traffic& pinned) {
  return {nvme.read_bytes, nvme.written_bytes, pinned.read_bytes, pinned.written_bytes};
}

// What ended in a step, by the counts before and after it.
Traffic Since(const Traffic& before, const Traffic& now) {
  return {now.read_bytes - before.read_bytes, now.written_bytes - before.written_bytes};
}

absl::Status Run(const command::TrainFlags& flags) {
  SPILLWAY_ASSIGN_OR_RETURN(const std::vector<Step> steps, RunForReal(flags));
  if (steps.empty()) return absl::InvalidArgumentError("no step was done");
  std::vector<plan::TraceTile> tiles = steps.front().recorded.trace.tiles;
  // Before the first step, weights have bytes, and what the update makes has none.
  for (plan::TraceTile& tile : tiles) tile.stored = !tile.transient && tile.role != Role::kMoment;
  const simulation::SimulationOptions options = simulation::OptionsOf(steps.back().recorded);
  SPILLWAY_ASSIGN_OR_RETURN(const auto engine, simulation::VirtualEngine::Open(tiles, options));
  nlohmann::ordered_json json = {{"v", 1}, {"rates", nlohmann::ordered_json::array()}};
  const plan::Rates rates = options.machine.Rates();
  for (const double rate : rates.link) json["rates"].push_back(rate);
  json["rates"].push_back(rates.nvme);
  json["rates"].push_back(rates.checksum);
  for (const Step& step : steps) {
    const EngineStats before = engine->stats();
    SPILLWAY_ASSIGN_OR_RETURN(const simulation::StepResult result,
                              engine->Step(step.recorded.trace.events));
    const EngineStats& after = engine->stats();
    const PlanStats& real = step.record.plan;
    json["steps"].push_back(
        {{"step", step.record.step},
         {"seconds", {step.record.seconds, result.seconds}},
         {"computing", result.compute_seconds},
         {"waited", {step.record.stall_seconds, result.stall_seconds}},
         // NVMe read and written, device in and out, of the plan's last whole period.
         {"real_bytes", ToJson(real.nvme, real.pinned)},
         {"simulated_bytes", ToJson(after.plan.nvme, after.plan.pinned)},
         // The same, of what ended within the step.
         {"real_ended", ToJson(step.record.nvme, step.record.pinned)},
         {"simulated_ended",
          ToJson(Since(before.nvme, after.nvme), Since(before.pinned, after.pinned))}});
    if (step.record.step == 1)
      SPILLWAY_RETURN_IF_ERROR(engine->Plan(step.recorded.trace.events).status());
  }
  std::cout << json.dump() << "\n";
  return absl::OkStatus();
}

}  // namespace
}  // namespace spillway::bench

int main(int argc, char** argv) {
  CLI::App app("Trains as `spillway train`, and simulates the same steps");
  spillway::command::TrainFlags flags;
  spillway::command::AddTrainFlags(&app, &flags);
  CLI11_PARSE(app, argc, argv);
  absl::Status status = spillway::command::FinishTrainFlags(&flags);
  if (status.ok()) status = spillway::bench::Run(flags);
  if (status.ok()) return 0;
  std::cerr << status << "\n";
  return 1;
}
