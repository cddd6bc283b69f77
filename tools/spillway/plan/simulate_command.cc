// SPDX-License-Identifier: Apache-2.0
//
// `spillway simulate`: runs steps of a model that need not fit here, in virtual time.

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "src/base/status_macros.h"
#include "tools/spillway/command/arguments.h"
#include "tools/spillway/command/commands.h"
#include "tools/spillway/command/json_text.h"
#include "tools/spillway/plan/answer.h"
#include "tools/spillway/plan/question.h"
#include "tools/spillway/plan/simulated_run.h"

namespace spillway::command {
namespace {

constexpr int64_t kMostSimulatedSteps = 100'000;
constexpr uint64_t kTimelineEvents = 500'000;  // as --trace of train

constexpr char kDescription[] =
    "Run a training step of any model on any machine, in virtual time.\n"
    "\n"
    "Examples:\n"
    "  spillway simulate --model 7B --gpu rtx4090 --dram 64GB --nvme 2x7GB/s:2TB --tokens 65536\n"
    "  spillway simulate --model 70B --gpu h200 --dram 512GB --nvme 4x7GB/s:3.8TB \\\n"
    "      --precision fp16-amp --state-format compact --tokens 131072 --json\n"
    "  spillway simulate ... --steps 3 --log-json log.jsonl --trace trace.json\n"
    "  spillway report log.jsonl trace.json\n"
    "\n"
    "The engine's own planner and pager decide what moves, tile by tile, and each transfer ends\n"
    "when the machine's links would have carried it. Nothing is allocated, read or written. It\n"
    "reports the step that repeats. \"Does not fit\" is an answer, too, and exits with 0.\n";

struct Flags {
  QuestionFlags question;
  std::optional<int64_t> steps;
  bool json = false;
};

absl::Status RunSimulate(const Flags& flags) {
  SPILLWAY_ASSIGN_OR_RETURN(const Question question, ReadQuestion(flags.question));
  SPILLWAY_RETURN_IF_ERROR(CheckSimulable(question));
  SPILLWAY_ASSIGN_OR_RETURN(RunOutputs outputs, OpenSimulatedRun(flags.question.recipe.outputs));
  std::vector<simulation::StepResult> steps;
  Execution execution;
  execution.observe = [&](const simulation::StepResult& step) { steps.push_back(step); };
  if (outputs.wants_timeline()) execution.timeline_events = kTimelineEvents;
  if (flags.steps) {
    execution.most_steps = static_cast<int>(*flags.steps) + 1;  // with the first
    execution.ends_early = false;
  }
  SPILLWAY_ASSIGN_OR_RETURN(const Answer answer, AnswerBySimulation(question, execution));
  if (answer.cost)
    WriteSimulatedRun(question, *answer.cost, steps, answer.cost->timeline, &outputs);
  if (flags.json) {
    absl::PrintF("%s\n", JsonText(ToJson(question, answer)));
  } else {
    absl::PrintF("%s", ToText(question, answer));
  }
  return absl::OkStatus();
}

void AddTimeFlags(CLI::App* app, Flags* flags) {
  MachineFlags& machine = flags->question.machine;
  BeginGroup(app, "Time");
  AddNumber(app, "--latency", &machine.latency_seconds, {0, 60},
            "Seconds from the start of an NVMe transfer until its first byte");
  AddNumber(app, "--jitter", &machine.jitter, {0, 100},
            "Each transfer takes up to this share of its time longer");
  AddSeed(app, "--seed", &machine.seed, "Of the jitter");
  AddParsed(
      app, "--steps", &flags->steps,
      [](const std::string& text) { return ParseInteger(text, 1, kMostSimulatedSteps); },
      "Steps to execute after the first one, which is served on demand while it is recorded "
      "(default: until a step repeats, at most 7)")
      .Type("N");
}

void AddFileFlags(CLI::App* app, Flags* flags) {
  RunOutputFlags& outputs = flags->question.recipe.outputs;
  BeginGroup(app, "Output");
  AddText(app, "--log-json", &outputs.log_json,
          "A JSON line a step into this file, as a real run's; spillway report shows it");
  AddText(app, "--trace", &outputs.trace,
          "The steps' timeline into this file, for ui.perfetto.dev and spillway report");
  AddFlag(app, "--force", &outputs.force, "Replace what the two flags above name");
  AddFlag(app, "--json", &flags->json, "One JSON object on stdout, nothing else there");
}

}  // namespace

void AddSimulateCommand(CLI::App* app, Run* run) {
  CLI::App* const simulate = AddCommand(app, "simulate", kDescription);
  const auto flags = std::make_shared<Flags>();
  AddQuestionFlags(simulate, &flags->question);
  AddTimeFlags(simulate, flags.get());
  AddFileFlags(simulate, flags.get());
  WhenChosen(simulate, [flags, run] { *run = [flags] { return RunSimulate(*flags); }; });
}

}  // namespace spillway::command
