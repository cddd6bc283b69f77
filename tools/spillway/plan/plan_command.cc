// SPDX-License-Identifier: Apache-2.0
//
// `spillway plan`: whether a model trains on a machine, how fast, and what would change that.

#include <limits>
#include <memory>
#include <string>

#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "src/base/bytes.h"
#include "src/base/status_macros.h"
#include "tools/spillway/command/arguments.h"
#include "tools/spillway/command/commands.h"
#include "tools/spillway/command/json_text.h"
#include "tools/spillway/plan/answer.h"
#include "tools/spillway/plan/question.h"

namespace spillway::command {
namespace {

constexpr char kDescription[] =
    "Say whether a model trains on a machine, how fast, and what would change that.\n"
    "\n"
    "Examples:\n"
    "  spillway plan --model 7B --gpu rtx4090 --dram 64GB --nvme 2x7GB/s:2TB --tokens 65536\n"
    "  spillway plan --model 1T --gpu h200 --dram 2TB --nvme 8x7GB/s:3.8TB \\\n"
    "      --precision fp16-amp --state-format compact --tokens 131072 --json\n"
    "  spillway plan --layers 48 --hidden 6144 --gpu a100 --dram 256GB --nvme 4x7GB/s:3.8TB\n"
    "  spillway plan --model my-model --config run.toml --gpu h100 --dram 1TB --nvme 7GB/s:3.8TB\n"
    "\n"
    "The engine's own planner and pager execute a step in virtual time, with a few thousand large\n"
    "tiles, so the answer is there at once; spillway simulate takes those of a run. \"Does not\n"
    "fit\" is an answer, too, and exits with 0.\n";

struct PlanFlags {
  QuestionFlags question;
  PlanWishes wishes;
  bool json = false;
};

absl::Status RunPlan(const PlanFlags& flags) {
  SPILLWAY_ASSIGN_OR_RETURN(const Question question, ReadQuestion(flags.question));
  SPILLWAY_ASSIGN_OR_RETURN(const PlanAnswer answer, AnswerAtOnce(question));
  if (flags.json) {
    absl::PrintF("%s\n", JsonText(ToJson(question, flags.wishes, answer)));
  } else {
    absl::PrintF("%s", ToText(question, flags.wishes, answer));
  }
  return absl::OkStatus();
}

}  // namespace

void AddPlanCommand(CLI::App* app, Run* run) {
  CLI::App* const plan = AddCommand(app, "plan", kDescription);
  const auto flags = std::make_shared<PlanFlags>();
  AddQuestionFlags(plan, &flags->question);
  BeginGroup(plan, "Answer");
  AddNumber(plan, "--train-tokens", &flags->wishes.train_tokens, {.least = 1, .most = 1e18},
            "Tokens of the whole training, whose days are told");
  AddOption(
      plan, "--endurance",
      [flags](const std::string& text) -> absl::Status {
        SPILLWAY_ASSIGN_OR_RETURN(const uint64_t bytes, base::ParseBytes(text));
        if (bytes == 0) return absl::InvalidArgumentError("an endurance must be above 0");
        flags->wishes.endurance_bytes = static_cast<double>(bytes);
        return absl::OkStatus();
      },
      "What may be written to a drive in its life, as 7000TB, to tell how long it lasts")
      .Type("SIZE");
  AddFlag(plan, "--json", &flags->json, "One JSON object on stdout, nothing else there");
  WhenChosen(plan, [flags, run] { *run = [flags] { return RunPlan(*flags); }; });
}

}  // namespace spillway::command
