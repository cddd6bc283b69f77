// SPDX-License-Identifier: Apache-2.0
//
// `spillway plan`: whether a model trains on a machine, how fast, and what would change that.

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "spillway/version.h"
#include "src/base/bytes.h"
#include "src/base/status_macros.h"
#include "tools/spillway/command/arguments.h"
#include "tools/spillway/command/commands.h"
#include "tools/spillway/command/json_text.h"
#include "tools/spillway/command/named_output.h"
#include "tools/spillway/plan/answer.h"
#include "tools/spillway/plan/plan_page.h"
#include "tools/spillway/plan/question.h"
#include "tools/spillway/plan/techniques_view.h"
#include "tools/trainer/metrics/output_file.h"

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
  WithoutFlags without;
  bool techniques = false;
  bool json = false;
  std::string html;
  bool force = false;
  std::string command;  // with these flags, as a shell reads it
};

constexpr trainer::OutputFile::Kind kPlanPage = {"a page of spillway plan", "<!doctype html>",
                                                 "<title>spillway plan"};
constexpr uint64_t kPageTimelineEvents = 1 << 19;  // of the page's picture of a step

absl::Status WritePage(const PlanFlags& flags, const PlanPage& page) {
  // Opened last, because an interrupt before that would leave an empty file.
  SPILLWAY_ASSIGN_OR_RETURN(trainer::OutputFile file,
                            OpenOutput("--html", flags.html, kPlanPage, flags.force));
  const absl::Status written = file.Replace(ToHtml(page));
  if (written.ok()) return written;
  return absl::Status(written.code(), absl::StrCat("--html: ", std::string(written.message()),
                                                   "; free some space, or name another file"));
}

absl::Status RunPlan(const PlanFlags& flags) {
  SPILLWAY_ASSIGN_OR_RETURN(const Question question, ReadQuestion(flags.question));
  const bool has_page = !flags.html.empty();
  SPILLWAY_ASSIGN_OR_RETURN(const PlanAnswer answer, AnswerAtOnce(question));
  const std::vector<WithoutSpillway> without =
      WithoutSpillwayFor(question, flags.without.OptionsFor(question.hardware));
  std::vector<TechniqueRow> techniques;
  if (flags.techniques || has_page) {
    SPILLWAY_ASSIGN_OR_RETURN(techniques, ListTechniques(question, without));
  }
  if (has_page) {
    std::optional<StepCost> drawn;
    if (answer.cost) {
      SPILLWAY_ASSIGN_OR_RETURN(const QuickStep step, QuickStep::Make(question, answer.fit));
      SPILLWAY_ASSIGN_OR_RETURN(
          drawn, step.Cost(question, answer.fit, /*with_bound=*/false, {}, kPageTimelineEvents));
    }
    SPILLWAY_RETURN_IF_ERROR(
        WritePage(flags, {.question = question,
                          .wishes = flags.wishes,
                          .answer = answer,
                          .without = without,
                          .techniques = techniques,
                          .drawn = drawn ? &*drawn : nullptr,
                          .command = flags.command,
                          .version = absl::StrCat("spillway ", std::string(Version()), " (",
                                                  std::string(BuildCommit()), ")")}));
  }
  if (flags.json) {
    nlohmann::ordered_json json = ToJson(question, flags.wishes, answer);
    json["without_spillway"] = ToJson(without, question);
    if (flags.techniques) json["techniques"] = ToJson(techniques);
    absl::PrintF("%s\n", JsonText(json));
    return absl::OkStatus();
  }
  absl::PrintF("%s", ToText(question, flags.wishes, answer));
  absl::PrintF("\n%s", flags.techniques ? ToText(techniques, question) : ToText(without, question));
  return absl::OkStatus();
}

// The flags as a command that others can run: the page lies where they want it.
std::string CommandOf(const CLI::App& plan, const std::string& html) {
  const std::string text =
      GivenAsText(plan, {"--html", "--json", "--force", "--techniques", "--config"});
  const std::string name = std::filesystem::path(html).filename().string();
  return absl::StrCat(text, " --html ", ShellWord(name));
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
  AddFlag(plan, "--techniques", &flags->techniques,
          "Also what one who is out of memory may do: each technique alone and together");
  AddWithoutFlags(plan, &flags->without);
  AddText(plan, "--html", &flags->html,
          "Also a page to be sent to others: one file that loads nothing; replaces an older one")
      .Type("FILE");
  AddFlag(plan, "--force", &flags->force, "Replace what --html names even if it is no such page");
  AddFlag(plan, "--json", &flags->json, "One JSON object on stdout, nothing else there");
  WhenChosen(plan, [flags, run, plan] {
    if (!flags->html.empty()) flags->command = CommandOf(*plan, flags->html);
    *run = [flags] { return RunPlan(*flags); };
  });
}

}  // namespace spillway::command
