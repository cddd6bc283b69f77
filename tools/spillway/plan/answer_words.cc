// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/plan/answer_words.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "src/base/bytes.h"
#include "src/base/view.h"

namespace spillway::command {
namespace {

using base::FormatBytes;
using base::View;

constexpr std::array<std::string_view, kNumTiers> kTierTitles = {"GPU", "memory", "NVMe"};
constexpr std::array<std::pair<std::string_view, std::string_view>, kNumRoles> kRoleTitles = {
    {{"weights", "weights"},
     {"gradients", "gradients"},
     {"master weights", "master_weights"},
     {"moments", "moments"},
     {"activations", "activations"}}};

}  // namespace

std::string Commas(int64_t number) {
  std::string digits = std::to_string(number);
  for (size_t at = digits.size(); at > 3;) digits.insert(at -= 3, ",");
  return digits;
}

std::string Short(double count) {
  for (const auto& [unit, name] : {std::pair{1e12, "T"}, {1e9, "B"}, {1e6, "M"}, {1e3, "k"}})
    if (count >= unit) return absl::StrFormat("%.4g %s", count / unit, name);
  return absl::StrFormat("%.4g", count);
}

std::string BytesWords(double bytes) {
  return FormatBytes(static_cast<uint64_t>(std::min(bytes, 1e19)));
}

std::string DaysWords(double days) {
  if (days >= 2 * 365) return absl::StrFormat("%.4g years", days / 365);
  if (days >= 2) return absl::StrFormat("%.1f days", days);
  if (days * 24 >= 2) return absl::StrFormat("%.1f hours", days * 24);
  return absl::StrFormat("%.1f minutes", days * 24 * 60);
}

std::string_view TierTitle(size_t tier) { return kTierTitles[tier]; }

std::string MachineWords(const Hardware& hardware) {
  std::string drives =
      absl::StrFormat("%s at %s/s read, %s/s written",
                      base::FormatCount(static_cast<uint64_t>(hardware.drives.count), "drive"),
                      BytesWords(hardware.drives.read), BytesWords(hardware.drives.write));
  if (hardware.drives.size_bytes > 0)
    absl::StrAppend(&drives, ", ", FormatBytes(hardware.drives.size_bytes), " each");
  return absl::StrFormat("%s, %s of memory, %s", std::string(hardware.gpu.title),
                         FormatBytes(hardware.dram_bytes), drives);
}

std::string RecipeWords(const Question& question) {
  const trainer::ModelOptions& options = question.options;
  return absl::StrCat(View(Name(options.precision)), ", ", View(Name(question.rule)),
                      " with state in ", View(Name(options.state_format)),
                      options.checkpoint_activations ? ", activations checkpointed" : "",
                      options.groups.frozen.empty() ? "" : ", parts frozen");
}

std::string StepWords(const Question& question) {
  const trainer::ModelOptions& options = question.options;
  return absl::StrFormat(
      "%s tokens: %s of %s of %s tokens", Commas(question.tokens),
      base::FormatCount(static_cast<uint64_t>(options.accumulate),
                        options.accumulate == 1 ? "micro-batch" : "micro-batche"),
      base::FormatCount(static_cast<uint64_t>(options.micro_batch), "window"),
      Commas(options.sequence));
}

std::string VerdictWords(const Question& question, const PlanAnswer& answer) {
  if (!answer.fit.fits()) {
    std::vector<std::string> lacking;
    for (size_t tier = 0; tier < kNumTiers; ++tier) {
      if (!answer.fit.tiers[tier].fits())
        lacking.push_back(absl::StrCat(FormatBytes(answer.fit.tiers[tier].missing()), " of ",
                                       tier == 0 ? "GPU memory" : View(kTierTitles[tier])));
    }
    return absl::StrCat("It does not fit: ", absl::StrJoin(lacking, " and "),
                        lacking.size() > 1 ? " are" : " is", " missing.");
  }
  if (!answer.cost) return "It fits, as far as bytes alone tell.";
  return absl::StrFormat("It fits: %.4g s a step, %s tokens/s.", answer.cost->seconds,
                         Short(static_cast<double>(question.tokens) / answer.cost->seconds));
}

bool Moves(const Answer& answer, size_t tier) {
  return answer.cost && answer.cost->is_simulated && Tier(tier) != Tier::kNvme;
}

std::vector<HeldPart> PartsOf(const Answer& answer, size_t tier) {
  const RoleBytes& roles =
      Moves(answer, tier) ? answer.cost->fullest[tier] : answer.fit.tiers[tier].roles;
  std::vector<HeldPart> parts;
  for (size_t role = 0; role < kNumRoles; ++role)
    parts.push_back({roles[role], kRoleTitles[role].first, kRoleTitles[role].second});
  if (Tier(tier) == Tier::kDevice)
    parts.push_back({answer.fit.workspace_bytes, "workspace", "workspace"});
  if (Tier(tier) == Tier::kNvme)
    parts.push_back({answer.fit.commit_bytes, "a commit's copy", "commit"});
  std::erase_if(parts, [](const HeldPart& part) { return part.bytes == 0; });
  std::stable_sort(parts.begin(), parts.end(),
                   [](const HeldPart& a, const HeldPart& b) { return a.bytes > b.bytes; });
  return parts;
}

std::vector<std::string> AssumptionsOf(const Question& question, const Answer& answer) {
  const Hardware& hardware = question.hardware;
  std::vector<std::string> lines = {
      absl::StrFormat("%s: %.4g TFLOP/s in 16 bits and %.4g in fp32, of which products reach "
                      "%.0f%%; memory at %s/s (%s)",
                      std::string(hardware.gpu.title), hardware.gpu.flops / 1e12,
                      hardware.gpu.flops_fp32 / 1e12, 100 * hardware.flops_share,
                      BytesWords(hardware.gpu.memory_bytes_per_second),
                      std::string(hardware.gpu.source)),
      absl::StrFormat("%s of the GPU's memory and %s of the machine's for the engine",
                      FormatBytes(question.device_bytes()), FormatBytes(question.pinned_bytes())),
      absl::StrFormat("%s/s between memory and GPU in each direction; the CPU updates %s/s of "
                      "state and hashes %s/s",
                      BytesWords(hardware.link), BytesWords(hardware.update_rate),
                      BytesWords(hardware.checksum)),
  };
  if (answer.cost && answer.cost->is_simulated)
    lines.push_back(absl::StrFormat(
        "the engine's planner and pager executed %d steps in virtual time, of %s tiles",
        answer.cost->steps, Commas(static_cast<int64_t>(answer.cost->num_tiles))));
  if (answer.cost && !answer.cost->is_simulated)
    lines.emplace_back(
        "the step has too many tiles to execute it at once: seconds and bytes are "
        "those of the bound");
  return lines;
}

}  // namespace spillway::command
