// SPDX-License-Identifier: Apache-2.0
//
// Formats the reports of a run.

#include "tools/spillway/train/train_report.h"

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string_view>

#include "absl/strings/str_format.h"
#include "spillway/types.h"
#include "src/base/bytes.h"

namespace spillway::command {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<Tier, kNumTiers> kTiers = {Tier::kDevice, Tier::kPinned, Tier::kNvme};

// Returns the largest resident set of this process so far, in bytes.
uint64_t PeakRssBytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss) * kKiB;
}

Json PeaksByTier(const std::array<Occupancy, kNumTiers>& tiers) {
  Json json;
  for (const Tier tier : kTiers) {
    json[std::string(Name(tier))] = tiers[static_cast<size_t>(tier)].peak_bytes;
  }
  return json;
}

// Returns the seconds that a step would take if the shorter of computing and transfers took no
// time.
double AloneSeconds(const trainer::StepTime& step) {
  return std::max(step.computing, step.transfers);
}

std::string_view ReasonName(trainer::EndReason reason) {
  switch (reason) {
    case trainer::EndReason::kDone: return "done";
    case trainer::EndReason::kStoppedAfter: return "stopped";
    case trainer::EndReason::kInterrupted: return "interrupted";
  }
  return "";
}

// Drives are rated in terabytes that may be written to them. The additional bytes that a drive
// writes internally (write amplification) are not counted here.
std::string DescribeDriveWear(const TrainReport& report) {
  constexpr double kRating = 100e12;
  const uint64_t written = report.stats.nvme.written_bytes;
  const int64_t steps = report.run.steps_this_run;
  if (written == 0 || steps == 0) return "";
  return absl::StrFormat(
      "drive wear: %s written in %s, commits and the state's first write included; at that rate "
      "each 100 TB that the store's drives are rated for lasts %.0f steps\n",
      base::FormatBytes(written), base::FormatCount(steps, "step"),
      kRating / static_cast<double>(written) * static_cast<double>(steps));
}

void AppendPeakRow(std::string_view label, const std::array<Occupancy, kNumTiers>& tiers,
                   std::string* text) {
  absl::StrAppendFormat(text, "  %-16s", std::string(label));
  for (const Tier tier : kTiers) {
    absl::StrAppendFormat(text, "%14s",
                          base::FormatBytes(tiers[static_cast<size_t>(tier)].peak_bytes));
  }
  text->push_back('\n');
}

}  // namespace

void AddEngineFigures(const EngineStats& stats, uint64_t workspace_bytes, Json* json) {
  Json peaks = PeaksByTier(stats.tiers);
  for (int role = 0; role < kNumRoles; ++role) {
    peaks["roles"][std::string(Name(static_cast<Role>(role)))] =
        PeaksByTier(stats.role_tiers[role]);
  }
  (*json)["peak_bytes"] = peaks;
  (*json)["workspace_bytes"] = workspace_bytes;
  (*json)["peak_rss_bytes"] = PeakRssBytes();
  (*json)["read_bytes"] = {{"nvme", stats.nvme.read_bytes}, {"pinned", stats.pinned.read_bytes}};
  (*json)["written_bytes"] = {{"nvme", stats.nvme.written_bytes},
                              {"pinned", stats.pinned.written_bytes}};
  (*json)["ssd_bytes_written"] = stats.nvme.written_bytes;
  (*json)["stall_s"] = stats.stall_seconds;
  (*json)["overlap"] = stats.overlap();
  const PlanStats& plan = stats.plan;
  (*json)["plan"] = {
      {"plans", plan.plans},
      {"steps", plan.steps},
      {"pulled", plan.pulled},
      {"deviations", plan.deviations},
      {"planned_bytes", plan.planned_bytes},
      {"moved_bytes", plan.moved_bytes()},
      {"read_bytes", {{"nvme", plan.nvme.read_bytes}, {"pinned", plan.pinned.read_bytes}}},
      {"written_bytes",
       {{"nvme", plan.nvme.written_bytes}, {"pinned", plan.pinned.written_bytes}}}};
  if (!plan.not_planned.empty()) (*json)["plan"]["not_planned"] = plan.not_planned;
  Json placement = Json::object();
  for (int role = 0; role < kNumRoles; ++role) {
    if (const auto tier = stats.placement[role])
      placement[std::string(Name(static_cast<Role>(role)))] = std::string(Name(*tier));
  }
  (*json)["placement"] = placement;
  (*json)["bytes_bound"] = plan.bytes_bound;
  (*json)["nvme_bytes_bound"] = plan.nvme_bytes_bound;
  (*json)["io"] = stats.io_engine;
  (*json)["device"] = stats.device;
  (*json)["fallbacks"] = stats.fallbacks;
}

Json ToJson(const TrainReport& report) {
  const trainer::RunSummary& run = report.run;
  Json json = {{"v", 1},
               {"exit_reason", ReasonName(run.reason)},
               {"steps", run.step},
               {"steps_this_run", run.steps_this_run},
               {"skipped_this_run", run.skipped_this_run},
               {"final_loss", run.last_loss},
               {"commits", run.commits},
               {"commit_s", run.commit_seconds}};
  if (run.last_evaluation) json["eval_loss"] = run.last_evaluation->loss;
  json["tokens_per_s"] = run.tokens_per_second;
  const trainer::StepTime& step = run.median_step;
  if (step.seconds > 0) json["step_s"] = step.seconds;
  if (step.bound > 0) {
    json["time_bound_s"] = step.bound;
    json["time_ratio"] = step.seconds / step.bound;
    json["compute_alone_s"] = step.computing;
    json["transfers_alone_s"] = step.transfers;
    json["alone_ratio"] = step.seconds / AloneSeconds(step);
  }
  json["predicted"] = ToJson(report.predicted);
  if (report.chosen) {
    json["auto"] = {{"step_s", report.chosen->step_seconds}};
    AddJsonBytes("", report.chosen->step_bytes, &json["auto"]);
  }
  if (report.weights_hash) json["weights_hash"] = *report.weights_hash;
  if (!report.lost_outputs.empty()) json["lost_outputs"] = report.lost_outputs;
  if (report.accumulation) json["accumulation"] = ToJson(*report.accumulation);
  AddEngineFigures(report.stats, report.workspace_bytes, &json);
  json["parameters"] = report.num_parameters;
  json["page_bytes"] = report.page_bytes;
  json["threads"] = report.threads;
  return json;
}

std::string ToText(const TrainReport& report) {
  const trainer::RunSummary& run = report.run;
  const EngineStats& stats = report.stats;
  std::string text = absl::StrFormat(
      "%s after %s (%d now, %d of them skipped): %s, %.1f tokens/s\n",
      std::string(ReasonName(run.reason)), base::FormatCount(run.step, "step"), run.steps_this_run,
      run.skipped_this_run,
      std::isnan(run.last_loss) ? "no loss yet" : absl::StrFormat("loss %.4f", run.last_loss),
      run.tokens_per_second);
  if (run.last_evaluation) {
    absl::StrAppendFormat(&text, "validation loss %.4f over %s\n", run.last_evaluation->loss,
                          base::FormatCount(run.last_evaluation->windows, "window"));
  }
  if (run.commits > 0) {
    absl::StrAppendFormat(&text, "commits: %d, %.1f s in all\n", run.commits, run.commit_seconds);
  }
  absl::StrAppendFormat(&text, "peak bytes        %14s%14s%14s\n", "device", "pinned", "nvme");
  for (int role = 0; role < kNumRoles; ++role) {
    AppendPeakRow(Name(static_cast<Role>(role)), stats.role_tiers[role], &text);
  }
  AppendPeakRow("all together", stats.tiers, &text);
  std::string placed;
  for (int role = 0; role < kNumRoles; ++role) {
    if (const auto tier = stats.placement[role]) {
      absl::StrAppendFormat(&placed, "%s %s=%s", placed.empty() ? "" : ",",
                            std::string(Name(static_cast<Role>(role))), std::string(Name(*tier)));
    }
  }
  if (!placed.empty()) absl::StrAppendFormat(&text, "placed:%s\n", placed);
  absl::StrAppendFormat(&text, "workspace %s beside them; %s resident at most\n",
                        base::FormatBytes(report.workspace_bytes),
                        base::FormatBytes(PeakRssBytes()));
  absl::StrAppendFormat(
      &text, "moved: nvme %s read, %s written; device %s in, %s out\n",
      base::FormatBytes(stats.nvme.read_bytes), base::FormatBytes(stats.nvme.written_bytes),
      base::FormatBytes(stats.pinned.read_bytes), base::FormatBytes(stats.pinned.written_bytes));
  text += DescribeDriveWear(report);
  if (stats.io_seconds > 0) {
    absl::StrAppendFormat(
        &text, "overlap: compute ran during %.1f%% of the transfer time; %.2f s waited\n",
        100 * stats.overlap(), stats.stall_seconds);
  }
  if (const PlanStats& plan = stats.plan; plan.plans > 0) {
    absl::StrAppendFormat(&text, "plan: followed in %s, abandoned in %d",
                          base::FormatCount(plan.steps, "step"), plan.deviations);
    if (plan.planned_bytes > 0) {
      absl::StrAppendFormat(
          &text,
          "; the last step that followed it moved %s, %s were planned, and no schedule moves less "
          "than %s",
          base::FormatBytes(plan.moved_bytes()), base::FormatBytes(plan.planned_bytes),
          base::FormatBytes(plan.bytes_bound));
    }
    text += "\n";
  }
  const trainer::StepTime& step = run.median_step;
  if (step.bound > 0) {
    absl::StrAppendFormat(&text,
                          "time: median step %.3f s (from the third on), %.3f times its lower "
                          "bound of %.3f s and %.3f "
                          "times the longer of computing (%.3f s) and transfers (%.3f s)\n",
                          step.seconds, step.seconds / step.bound, step.bound,
                          step.seconds / AloneSeconds(step), step.computing, step.transfers);
  }
  text += ToText(report.predicted);
  if (report.chosen && step.seconds > 0) {
    absl::StrAppendFormat(
        &text,
        "--auto had predicted %.3f s for a step with this machine's profile; the median took %.3f "
        "s; %s\n",
        report.chosen->step_seconds, step.seconds, DescribeMoved(report.chosen->step_bytes));
  }
  if (!stats.plan.not_planned.empty())
    absl::StrAppendFormat(&text, "not planned: %s\n", stats.plan.not_planned);
  if (report.weights_hash) absl::StrAppendFormat(&text, "weights hash %s\n", *report.weights_hash);
  return text;
}

}  // namespace spillway::command
