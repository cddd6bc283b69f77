// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/plan/fit_advice.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "spillway/optimizer.h"
#include "src/base/bytes.h"
#include "src/base/status_macros.h"
#include "src/base/view.h"

namespace spillway::command {
namespace {

constexpr int64_t kShortestWindow = 128;
constexpr int64_t kMostDrivesAdvised = 1024;

// Changes the question and says how; none if it has nothing to change.
using Alter = std::function<absl::StatusOr<std::optional<FitChange>>(Question*)>;

bool HasFormat(const Question& question, StateFormat format) {
  // Parameters that are kept in fp32 have no compact state.
  if (format == StateFormat::kCompact && !question.options.groups.fp32.empty()) return false;
  const TensorSpec weight = {.name = "",
                             .dtype = trainer::ElementType(question.options.precision),
                             .shape = {1, 64},
                             .role = Role::kParameter};
  return StateSpecs(question.options.rule, format, weight).ok();
}

absl::StatusOr<std::optional<FitChange>> SmallerMicroBatch(Question* question) {
  const int64_t given = question->options.micro_batch;
  if (question->chose_micro_batch || given == 1 || !question->model.config) return std::nullopt;
  question->chose_micro_batch = true;
  SPILLWAY_RETURN_IF_ERROR(ChooseMicroBatch(question));
  const trainer::ModelOptions& options = question->options;
  if (options.micro_batch >= given) return std::nullopt;
  return FitChange{
      absl::StrFormat("--batch %d --accumulate %d", options.micro_batch, options.accumulate),
      "smaller micro-batches, the same numbers"};
}

absl::StatusOr<std::optional<FitChange>> Checkpointing(Question* question) {
  if (question->options.checkpoint_activations) return std::nullopt;
  question->options.checkpoint_activations = true;
  SPILLWAY_RETURN_IF_ERROR(ChooseMicroBatch(question));
  return FitChange{"--checkpoint-activations on", "a third more computing, the same numbers"};
}

absl::StatusOr<std::optional<FitChange>> FreePlaces(Question* question) {
  if (question->placement == Placement{}) return std::nullopt;
  question->placement = {};
  SPILLWAY_RETURN_IF_ERROR(ChooseMicroBatch(question));
  return FitChange{"without --place", "the engine moves what does not fit, the same numbers"};
}

absl::StatusOr<std::optional<FitChange>> AllMemory(Question* question) {
  if (question->most_device_bytes == kUnlimited && question->most_pinned_bytes == kUnlimited)
    return std::nullopt;
  question->most_device_bytes = question->most_pinned_bytes = kUnlimited;
  SPILLWAY_RETURN_IF_ERROR(ChooseMicroBatch(question));
  return FitChange{"without --device-bytes and --pinned-bytes", "the engine takes all it may"};
}

absl::StatusOr<std::optional<FitChange>> InMemory(Role role, const char* word, Question* question) {
  std::optional<Tier>& place = question->placement[static_cast<size_t>(role)];
  if (place || !question->model.config) return std::nullopt;
  place = Tier::kPinned;
  return FitChange{absl::StrFormat("--place %s=pinned", word), "memory holds them, not NVMe"};
}

absl::StatusOr<std::optional<FitChange>> OneAfterAnother(Question* question) {
  if (!question->options.by_layer()) return std::nullopt;
  question->options.accumulation_order = trainer::AccumulationOrder::kMicroBatch;
  return FitChange{"--accumulation-order micro-batch",
                   "activations of one micro-batch at a time, weights are read more often"};
}

absl::StatusOr<std::optional<FitChange>> NarrowGradients(Question* question) {
  const DType own = trainer::ElementType(question->options.precision);
  if (question->options.gradient_dtype == own) return std::nullopt;
  question->options.gradient_dtype = own;
  return FitChange{absl::StrCat("--grad-dtype ", own == DType::kF16 ? "fp16" : "bf16"),
                   "gradients are rounded to 16 bits"};
}

absl::StatusOr<std::optional<FitChange>> Narrow(Question* question) {
  if (question->options.precision != trainer::Precision::kFp32) return std::nullopt;
  question->options.precision = trainer::Precision::kBf16;
  question->options.gradient_dtype = DType::kBF16;
  SPILLWAY_RETURN_IF_ERROR(ChooseMicroBatch(question));
  return FitChange{"--precision bf16", "products of 16-bit operands"};
}

absl::StatusOr<std::optional<FitChange>> Format(StateFormat format, Question* question) {
  if (question->options.state_format >= format) return std::nullopt;  // from wide to narrow
  if (!HasFormat(*question, format)) return std::nullopt;
  question->options.state_format = format;
  return FitChange{absl::StrCat("--state-format ", base::View(Name(format))),
                   "optimizer state is rounded"};
}

absl::StatusOr<std::optional<FitChange>> NoCommits(Question* question) {
  if (!question->keeps_commits) return std::nullopt;
  question->keeps_commits = false;
  return FitChange{"--durability none", "a run that is killed begins anew"};
}

absl::StatusOr<std::optional<FitChange>> ShorterWindows(Question* question) {
  if (!question->model.config) return std::nullopt;
  const int64_t given = question->options.sequence;
  while (question->options.sequence / 2 >= kShortestWindow) {
    question->options.sequence /= 2;
    if (question->chose_micro_batch)
      question->tokens = question->tokens / question->options.sequence * question->options.sequence;
    SPILLWAY_RETURN_IF_ERROR(ChooseMicroBatch(question));
    SPILLWAY_ASSIGN_OR_RETURN(const Fit fit, FitOf(*question));
    if (fit[Tier::kDevice].fits()) break;
  }
  if (question->options.sequence == given) return std::nullopt;
  return FitChange{absl::StrFormat("--seq %d", question->options.sequence), "shorter windows"};
}

absl::StatusOr<std::optional<FitChange>> MoreMemory(Question* question) {
  SPILLWAY_ASSIGN_OR_RETURN(const Fit fit, FitOf(*question));
  if (fit[Tier::kPinned].fits()) return std::nullopt;
  question->most_pinned_bytes = kUnlimited;
  question->hardware.dram_bytes = base::RoundUp(fit[Tier::kPinned].needed / 7 * 8 + 8, kGiB);
  return FitChange{absl::StrCat("--dram ", question->hardware.dram_bytes / kGiB, "GiB"),
                   "more memory"};
}

absl::StatusOr<std::optional<FitChange>> MoreDrives(Question* question) {
  SPILLWAY_ASSIGN_OR_RETURN(const Fit fit, FitOf(*question));
  Drives& drives = question->hardware.drives;
  if (fit[Tier::kNvme].fits()) return std::nullopt;
  const double count = std::ceil(static_cast<double>(fit[Tier::kNvme].needed) /
                                 static_cast<double>(drives.size_bytes));
  if (count > kMostDrivesAdvised) return std::nullopt;
  drives.count = static_cast<int64_t>(count);
  return FitChange{absl::StrFormat("%d drives", drives.count),
                   absl::StrCat("of ", base::FormatBytes(drives.size_bytes), " each")};
}

absl::StatusOr<std::optional<FitChange>> LargerGpu(Question* question) {
  SPILLWAY_ASSIGN_OR_RETURN(const Fit fit, FitOf(*question));
  if (fit[Tier::kDevice].fits()) return std::nullopt;
  std::vector<Gpu> gpus(Gpus().begin(), Gpus().end());
  std::stable_sort(gpus.begin(), gpus.end(),
                   [](const Gpu& a, const Gpu& b) { return a.memory_bytes < b.memory_bytes; });
  for (const Gpu& gpu : gpus) {
    if (gpu.memory_bytes <= question->hardware.gpu.memory_bytes || gpu.dram_bytes > 0) continue;
    question->hardware.gpu = gpu;
    question->most_device_bytes = kUnlimited;
    SPILLWAY_ASSIGN_OR_RETURN(const Fit larger, FitOf(*question));
    if (larger[Tier::kDevice].fits())
      return FitChange{absl::StrCat("--gpu ", base::View(gpu.name)), "a GPU of more memory"};
  }
  return std::nullopt;
}

// In the order of what they cost: nothing but seconds, then bits, then safety, then money.
const std::vector<Alter>& Changes() {
  using std::placeholders::_1;
  static const auto& changes = *new std::vector<Alter>{
      SmallerMicroBatch,
      FreePlaces,
      AllMemory,
      Checkpointing,
      OneAfterAnother,
      std::bind(InMemory, Role::kActivation, "activations", _1),
      std::bind(InMemory, Role::kGradient, "gradients", _1),
      NarrowGradients,
      Narrow,
      std::bind(Format, StateFormat::kBf16, _1),
      std::bind(Format, StateFormat::k8Bit, _1),
      std::bind(Format, StateFormat::kCompact, _1),
      ShorterWindows,
      NoCommits,
      // A larger machine.
      MoreMemory,
      MoreDrives,
      LargerGpu,
  };
  return changes;
}

constexpr size_t kLargerMachines = 3;  // the last of the changes

// The bytes that are missing, in parts of what there is.
double Missing(const Fit& fit) {
  double missing = 0;
  for (const TierNeed& tier : fit.tiers)
    if (!tier.fits())
      missing += static_cast<double>(tier.missing()) / static_cast<double>(tier.room);
  return missing;
}

struct Altered {
  Fit fit;
  std::vector<FitChange> changes;
};

// The question after these changes, one after another.
absl::StatusOr<Altered> AfterChanges(Question question, const std::vector<size_t>& which) {
  Altered altered;
  for (const size_t index : which) {
    SPILLWAY_ASSIGN_OR_RETURN(std::optional<FitChange> change, Changes()[index](&question));
    if (change) altered.changes.push_back(*std::move(change));
  }
  SPILLWAY_ASSIGN_OR_RETURN(altered.fit, FitOf(question));
  return altered;
}

// The cheapest changes that help, until it fits; then without those that are not needed.
absl::StatusOr<std::vector<FitChange>> Together(const Question& question, const Fit& fit) {
  std::vector<size_t> taken;
  Altered altered = {fit, {}};
  for (size_t i = 0; i < Changes().size() && !altered.fit.fits(); ++i) {
    std::vector<size_t> more = taken;
    more.push_back(i);
    SPILLWAY_ASSIGN_OR_RETURN(Altered next, AfterChanges(question, more));
    if (Missing(next.fit) >= Missing(altered.fit)) continue;
    taken = std::move(more);
    altered = std::move(next);
  }
  if (!altered.fit.fits()) return std::vector<FitChange>();
  for (size_t i = taken.size(); i-- > 0;) {
    std::vector<size_t> fewer = taken;
    fewer.erase(fewer.begin() + static_cast<std::ptrdiff_t>(i));
    SPILLWAY_ASSIGN_OR_RETURN(Altered next, AfterChanges(question, fewer));
    if (!next.fit.fits()) continue;
    taken = std::move(fewer);
    altered = std::move(next);
  }
  return altered.changes;
}

}  // namespace

absl::StatusOr<FitAdvice> AdviseFit(const Question& question, const Fit& fit) {
  FitAdvice advice;
  if (fit.fits()) return advice;
  bool needs_others = true;
  for (size_t i = 0; i < Changes().size(); ++i) {
    SPILLWAY_ASSIGN_OR_RETURN(const Altered altered, AfterChanges(question, {i}));
    if (altered.changes.empty() || !altered.fit.fits()) continue;
    advice.alone.push_back(altered.changes.front());
    if (i + kLargerMachines < Changes().size()) needs_others = false;
  }
  if (needs_others) {
    SPILLWAY_ASSIGN_OR_RETURN(advice.together, Together(question, fit));
  }
  // What a larger machine alone does is told already.
  if (advice.together.size() == 1) advice.together.clear();
  return advice;
}

}  // namespace spillway::command
