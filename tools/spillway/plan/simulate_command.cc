// SPDX-License-Identifier: Apache-2.0
//
// `spillway simulate`: runs steps of a model that need not fit here, in virtual time.

#include <memory>
#include <string>

#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "src/base/status_macros.h"
#include "tools/spillway/command/arguments.h"
#include "tools/spillway/command/commands.h"
#include "tools/spillway/command/json_text.h"
#include "tools/spillway/plan/answer.h"
#include "tools/spillway/plan/question.h"

namespace spillway::command {
namespace {

constexpr char kDescription[] =
    "Run a training step of any model on any machine, in virtual time.\n"
    "\n"
    "Examples:\n"
    "  spillway simulate --model 7B --gpu rtx4090 --dram 64GB --nvme 2x7GB/s:2TB --tokens 65536\n"
    "  spillway simulate --model 70B --gpu h200 --dram 512GB --nvme 4x7GB/s:3.8TB \\\n"
    "      --precision fp16-amp --state-format compact --tokens 131072 --json\n"
    "\n"
    "The engine's own planner and pager decide what moves, tile by tile, and each transfer ends\n"
    "when the machine's links would have carried it. Nothing is allocated, read or written. It\n"
    "reports the step that repeats. \"Does not fit\" is an answer, too, and exits with 0.\n";

struct Flags {
  QuestionFlags question;
  bool json = false;
};

absl::Status RunSimulate(const Flags& flags) {
  SPILLWAY_ASSIGN_OR_RETURN(const Question question, ReadQuestion(flags.question));
  SPILLWAY_ASSIGN_OR_RETURN(const Answer answer, AnswerQuestion(question));
  if (flags.json) {
    absl::PrintF("%s\n", JsonText(ToJson(question, answer)));
  } else {
    absl::PrintF("%s", ToText(question, answer));
  }
  return absl::OkStatus();
}

}  // namespace

void AddSimulateCommand(CLI::App* app, Run* run) {
  CLI::App* const simulate = AddCommand(app, "simulate", kDescription);
  const auto flags = std::make_shared<Flags>();
  AddQuestionFlags(simulate, &flags->question);
  BeginGroup(simulate, "Time");
  AddNumber(simulate, "--latency", &flags->question.latency_seconds, {0, 60},
            "Seconds from the start of an NVMe transfer until its first byte");
  AddNumber(simulate, "--jitter", &flags->question.jitter, {0, 100},
            "Each transfer takes up to this share of its time longer");
  AddSeed(simulate, "--seed", &flags->question.seed, "Of the jitter");
  AddFlag(simulate, "--json", &flags->json, "One JSON object on stdout, nothing else there");
  WhenChosen(simulate, [flags, run] { *run = [flags] { return RunSimulate(*flags); }; });
}

}  // namespace spillway::command
