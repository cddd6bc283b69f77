// SPDX-License-Identifier: Apache-2.0
//
// The report of a command at its end: one JSON object for programs, or a short table for people.

#ifndef SPILLWAY_TOOLS_SPILLWAY_TRAIN_TRAIN_REPORT_H_
#define SPILLWAY_TOOLS_SPILLWAY_TRAIN_TRAIN_REPORT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "spillway/stats.h"
#include "tools/spillway/train/accumulation_choice.h"
#include "tools/spillway/train/auto_choice.h"
#include "tools/spillway/train/predicted_step.h"
#include "tools/trainer/trainer.h"

namespace spillway::command {

// The figures of a training run.
struct TrainReport {
  trainer::RunSummary run;
  EngineStats stats;
  uint64_t workspace_bytes = 0;
  uint64_t num_parameters = 0;
  uint64_t page_bytes = 0;
  int64_t threads = 0;
  std::optional<AccumulationChoice> accumulation;  // if a step has several micro-batches
  PredictedStep predicted;
  std::optional<AutoChoice> chosen;  // by --auto
  std::optional<std::string> weights_hash;
  std::vector<std::string> lost_outputs;  // files of RunOutputs that are not complete
};

// {"v":1,"exit_reason":"done"|"stopped"|"interrupted","steps":…,"final_loss":…,…}. "step_s" is the
// duration of the median step, from the third step on. If there is a plan, "time_bound_s",
// "time_ratio", "compute_alone_s", "transfers_alone_s" and "alone_ratio" are those of that step, as
// in the step log. "commits" counts the commits of this run, and "commit_s" is the seconds that
// they took together. "predicted" is a step as a simulation has it, beside the real one
// (predicted_step.h). "auto" is the step that --auto chose by, {"step_s":…,"read_bytes":…,
// "written_bytes":…}: simulated with the machine's profile. "lost_outputs" lists the files that
// could not be written completely; it is absent if there are none.
nlohmann::ordered_json ToJson(const TrainReport& report);
std::string ToText(const TrainReport& report);

// Adds the memory and traffic figures, which every command reports, to its object: "peak_bytes" (of
// each tier, and of each role at its own peak: see EngineStats::role_tiers), "workspace_bytes",
// "peak_rss_bytes", "read_bytes", "written_bytes", "ssd_bytes_written", "stall_s", "overlap",
// "plan", "bytes_bound", "nvme_bytes_bound", "io", "device", "fallbacks".
void AddEngineFigures(const EngineStats& stats, uint64_t workspace_bytes,
                      nlohmann::ordered_json* json);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_TRAIN_TRAIN_REPORT_H_
