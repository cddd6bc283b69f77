// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/plan/outlook.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/base/bytes.h"
#include "src/base/status_macros.h"
#include "tools/trainer/flops.h"
#include "tools/trainer/parameters.h"

namespace spillway::command {
namespace {

constexpr double kSecondsOfADay = 86400;
constexpr double kMostParametersPlanned = 1e15;
constexpr std::array<std::string_view, kNumTiers> kTierWords = {"the GPU", "memory", "NVMe"};

// The question with a model of as many layers, in the same tiles.
Question WithLayers(Question question, int64_t layers) {
  hf::ModelConfig& config = *question.model.config;
  question.options.tiles = trainer::TilesOf(trainer::Describe(config), question.options);
  if (!config.windows.empty()) config.windows.resize(static_cast<size_t>(layers), 0);
  config.num_layers = layers;
  return question;
}

double ParametersOf(const Question& question) {
  double parameters = 0;
  for (const trainer::ParameterShape& shape : trainer::ListParameters(question.config()))
    parameters += static_cast<double>(shape.elements());
  return parameters;
}

// Of a model that was counted, all grows alike.
LargestModel LargestCounted(const Question& question, const Fit& fit) {
  double factor = kMostParametersPlanned / static_cast<double>(question.num_parameters);
  LargestModel largest = {.is_limited = false, .full_first = ""};
  for (size_t tier = 0; tier < kNumTiers; ++tier) {
    const TierNeed& need = fit.tiers[tier];
    if (need.room == 0 || need.needed == 0) continue;
    const double most = static_cast<double>(need.room) / static_cast<double>(need.needed);
    if (most >= factor) continue;
    factor = most;
    largest.is_limited = true;
    largest.full_first = kTierWords[tier];
  }
  largest.parameters = static_cast<uint64_t>(factor * static_cast<double>(question.num_parameters));
  return largest;
}

std::vector<std::pair<MoreOfOne, Question>> Variants(const Question& question) {
  std::vector<std::pair<MoreOfOne, Question>> variants;
  const auto add = [&](std::string_view key, std::string words) -> Question& {
    return variants.emplace_back(MoreOfOne{key, std::move(words)}, question).second;
  };
  const int64_t drives = question.hardware.drives.count;
  if (drives > 1) add("drive", "one more drive").hardware.drives.count += 1;
  add("drives", drives == 1 ? "a second drive" : "twice the drives").hardware.drives.count *= 2;
  Question& memory = add("memory", "twice the memory");
  memory.hardware.dram_bytes *= 2;
  if (memory.most_pinned_bytes != kUnlimited) memory.most_pinned_bytes *= 2;
  add("link", "a link twice as fast").hardware.link *= 2;
  add("gpu", "a GPU twice as fast");
  return variants;
}

}  // namespace

double ModelFlopUtilisation(const Question& question, const StepCost& cost) {
  return trainer::StepFlops(question.config(), question.options) /
         (cost.seconds * question.hardware.gpu.flops);
}

int64_t TokensThatHideIo(const Question& question, const StepCost& cost) {
  const double hidden = cost.io_seconds() - cost.update_seconds;
  if (hidden <= 0 || cost.walk_seconds() <= 0) return 0;
  const double tokens = static_cast<double>(question.tokens) * hidden / cost.walk_seconds();
  const auto window = static_cast<double>(question.options.sequence);
  return static_cast<int64_t>(std::min(std::ceil(tokens / window) * window, 1e18));
}

double DaysFor(double train_tokens, const Question& question, const StepCost& cost) {
  return train_tokens / static_cast<double>(question.tokens) * cost.seconds / kSecondsOfADay;
}

DriveWear WearOf(double endurance_bytes, const Question& question, const StepCost& cost) {
  const double of_drive = static_cast<double>(cost.bytes[plan::Transfer::kWrite]) /
                          static_cast<double>(question.hardware.drives.count);
  DriveWear wear = {.written_a_day = of_drive / cost.seconds * kSecondsOfADay};
  if (endurance_bytes > 0 && wear.written_a_day > 0)
    wear.days = endurance_bytes / wear.written_a_day;
  return wear;
}

// What a tier needs grows by the same bytes with each layer, so two sizes tell all others.
absl::StatusOr<LargestModel> LargestThatFits(const Question& question) {
  if (!question.model.config) {
    SPILLWAY_ASSIGN_OR_RETURN(const Fit fit, FitOf(question));
    return LargestCounted(question, fit);
  }
  const Question one = WithLayers(question, 1), two = WithLayers(question, 2);
  SPILLWAY_ASSIGN_OR_RETURN(const Fit first, FitOf(one));
  SPILLWAY_ASSIGN_OR_RETURN(const Fit second, FitOf(two));
  const double parameters = ParametersOf(one);
  const double of_layer = ParametersOf(two) - parameters;
  double most = std::floor((kMostParametersPlanned - parameters) / of_layer);
  LargestModel largest = {.is_limited = false, .full_first = ""};
  for (size_t tier = 0; tier < kNumTiers; ++tier) {
    const TierNeed& need = first.tiers[tier];
    if (need.room == 0) continue;
    const auto more = static_cast<double>(second.tiers[tier].needed - need.needed);
    const double room = static_cast<double>(need.room) - static_cast<double>(need.needed);
    const double layers = room < 0 ? -1 : more <= 0 ? most : std::floor(room / more);
    if (layers >= most) continue;
    most = layers;
    largest.is_limited = true;
    largest.full_first = kTierWords[tier];
  }
  if (most < 0) return largest;
  largest.layers = 1 + static_cast<int64_t>(most);
  largest.parameters = static_cast<uint64_t>(parameters + most * of_layer);
  return largest;
}

absl::StatusOr<std::vector<MoreOfOne>> OneMoreOfEach(const Question& question, const Fit& fit,
                                                     const QuickStep& step, const StepCost& cost) {
  auto variants = Variants(question);
  std::vector<absl::Status> failed(variants.size());
  std::atomic<size_t> next{0};
  const auto work = [&] {
    for (size_t i = next++; i < variants.size(); i = next++) {
      auto& [more, changed] = variants[i];
      const auto priced = step.Cost(changed, fit, more.key == "gpu" ? 2 : 1);
      failed[i] = priced.status();
      if (priced.ok()) more.seconds = std::min(priced->seconds, cost.seconds);
    }
  };
  std::vector<std::thread> threads;
  const size_t count =
      std::min<size_t>(std::max(1U, std::thread::hardware_concurrency()), variants.size());
  for (size_t i = 1; i < count; ++i) threads.emplace_back(work);
  work();
  for (std::thread& thread : threads) thread.join();
  std::vector<MoreOfOne> all;
  for (size_t i = 0; i < variants.size(); ++i) {
    SPILLWAY_RETURN_IF_ERROR(failed[i]);
    all.push_back(std::move(variants[i].first));
  }
  return all;
}

}  // namespace spillway::command
