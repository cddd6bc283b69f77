// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/plan/outlook.h"

#include <algorithm>
#include <array>
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
// The transfers are hidden if waiting takes less than this share of a step.
constexpr double kHiddenShare = 0.1;
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

struct MoreOfRates {
  MoreOfOne more;
  FasterMachine machine;
};

// More of what changes no plan.
std::vector<MoreOfRates> MoreRates(const Hardware& hardware) {
  std::vector<MoreOfRates> all;
  const auto add = [&](std::string_view key, std::string words) -> FasterMachine& {
    return all.emplace_back(MoreOfRates{{key, std::move(words)}, {hardware}}).machine;
  };
  if (hardware.drives.count > 1) add("drive", "one more drive").hardware.drives.count += 1;
  add("drives", hardware.drives.count == 1 ? "a second drive" : "twice the drives")
      .hardware.drives.count *= 2;
  add("link", "a link twice as fast").hardware.link *= 2;
  add("gpu", "a GPU twice as fast").gpu = 2;
  FasterMachine& cpu = add("cpu", "a CPU twice as fast");
  cpu.cpu = 2;
  cpu.hardware.checksum *= 2;
  return all;
}

Question WithTwiceTheMemory(Question question) {
  question.hardware.dram_bytes *= 2;
  if (question.most_pinned_bytes != kUnlimited) question.most_pinned_bytes *= 2;
  return question;
}

}  // namespace

double ModelFlopUtilisation(const Question& question, const StepCost& cost) {
  return trainer::StepFlops(question.config(), question.options) /
         (cost.seconds * question.hardware.gpu.flops);
}

int64_t TokensThatHideIo(const Question& question, const StepCost& cost) {
  if (cost.walk_seconds() <= 0) return 0;
  const double hidden = std::max(cost.io_seconds(), (1 / kHiddenShare - 1) * cost.waiting_seconds);
  const double walk = std::max(0.0, hidden - cost.update_seconds);
  const double tokens = static_cast<double>(question.tokens) * walk / cost.walk_seconds();
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

absl::StatusOr<std::vector<MoreOfOne>> PriceOneMoreOfEach(const Question& question, const Fit& fit,
                                                          const QuickStep& step, StepCost* cost) {
  // Another memory needs another plan, which is made beside.
  absl::StatusOr<StepCost> with_memory;
  std::thread beside(
      [&] { with_memory = step.Cost(WithTwiceTheMemory(question), fit, /*with_bound=*/false); });
  std::vector<MoreOfRates> rates = MoreRates(question.hardware);
  std::vector<FasterMachine> machines;
  for (const MoreOfRates& each : rates) machines.push_back(each.machine);
  absl::StatusOr<StepCost> priced = step.Cost(question, fit, /*with_bound=*/true, machines);
  beside.join();
  SPILLWAY_RETURN_IF_ERROR(priced.status());
  SPILLWAY_RETURN_IF_ERROR(with_memory.status());
  *cost = *std::move(priced);
  std::vector<MoreOfOne> all;
  for (size_t i = 0; i < rates.size(); ++i) {
    rates[i].more.seconds = std::min(cost->others[i], cost->seconds);
    all.push_back(std::move(rates[i].more));
  }
  all.push_back({"memory", "twice the memory", std::min(with_memory->seconds, cost->seconds)});
  return all;
}

}  // namespace spillway::command
