// SPDX-License-Identifier: Apache-2.0
//
// Computes what a model needs from its configuration and options alone: the smallest budgets and
// the bytes of its state.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "spillway/types.h"
#include "tools/hf/config.h"
#include "tools/trainer/activations.h"
#include "tools/trainer/model.h"
#include "tools/trainer/parameters.h"

namespace spillway::trainer {
namespace {

// The size of a frame is a multiple of this.
constexpr uint64_t kFrameBytes = 4 * kKiB;

uint64_t FrameBytes(uint64_t tile_bytes) {
  return (tile_bytes + kFrameBytes - 1) / kFrameBytes * kFrameBytes;
}

uint64_t TileFrameBytes(const TensorSpec& spec) { return FrameBytes(spec.tile_bytes(0)); }

// Returns the bytes of the frames of all tiles.
uint64_t RoomBytes(const TensorSpec& spec) {
  const uint64_t last = spec.num_tiles() - 1;
  return last * TileFrameBytes(spec) + FrameBytes(spec.tile_bytes(last));
}

// Returns the pinned bytes that always have room for one tile of each tensor of a parameter
// (`specs`), leased one after another and held together. In the worst case, the k - 1 frames held
// before the k-th lease leave k gaps, each just too small for its tile.
uint64_t UpdateBytes(const std::vector<TensorSpec>& specs) {
  uint64_t held = 0;
  uint64_t most = 0;
  uint64_t count = 0;
  for (const TensorSpec& spec : specs) {
    const uint64_t bytes = TileFrameBytes(spec);
    most = std::max(most, held + (++count) * bytes);
    held += bytes;
  }
  return most;
}

// Sorts smallest first: UpdateBytes of this order is an upper bound for every other order.
std::vector<TensorSpec> UpdateOrder(std::vector<TensorSpec> specs) {
  std::sort(specs.begin(), specs.end(), [](const TensorSpec& a, const TensorSpec& b) {
    return TileFrameBytes(a) < TileFrameBytes(b);
  });
  return specs;
}

void Count(const TensorSpec& spec, StateBytes* bytes) {
  (spec.transient ? bytes->transient : bytes->committed) += spec.size_bytes();
  uint64_t& room = spec.transient ? bytes->transient_room : bytes->committed_room;
  room += RoomBytes(spec);
}

}  // namespace

MinimumBudgets SmallestBudgets(const hf::ModelConfig& config, const ModelOptions& options,
                               const Placement& placement) {
  MinimumBudgets budgets;
  uint64_t largest = 0;
  const auto rests = [&](const TensorSpec& spec, Tier tier) {
    return placement[static_cast<size_t>(spec.role)] == tier;
  };
  const auto count = [&](const TensorSpec& spec, bool is_leased_on_device) {
    budgets.role_bytes[static_cast<size_t>(spec.role)] += RoomBytes(spec);
    if (is_leased_on_device && !rests(spec, Tier::kDevice))
      budgets.device_bytes = std::max(budgets.device_bytes, TileFrameBytes(spec));
    // Any tile that does not rest in pinned memory may pass through it.
    if (!rests(spec, Tier::kPinned)) largest = std::max(largest, TileFrameBytes(spec));
  };
  const Description model = Describe(config);
  const TileSizes tiles = TilesOf(model, options);
  for (const ParameterShape& parameter : model.parameters) {
    auto specs = ParameterTensorSpecs(parameter, options, tiles);
    for (const TensorSpec& spec : specs)
      count(spec, spec.role == Role::kParameter || spec.role == Role::kGradient);
    if (!options.training) continue;
    // As Optimizer::Create with a stream tells it.
    const bool on_device =
        options.on_gpu && options.rule.kind == RuleKind::kAdamW && !options.rule.amsgrad &&
        std::all_of(specs.begin(), specs.end(), [&](const TensorSpec& spec) {
          return (spec.role != Role::kMoment && spec.role != Role::kMasterWeight) ||
                 rests(spec, Tier::kDevice);
        });
    const Tier tier = on_device ? Tier::kDevice : Tier::kPinned;
    uint64_t& bytes = on_device ? budgets.device_bytes : budgets.pinned_bytes;
    std::erase_if(specs, [&](const TensorSpec& spec) { return rests(spec, tier); });
    bytes = std::max(bytes, UpdateBytes(UpdateOrder(specs)));
  }
  for (const TensorSpec& spec : ActivationSpecs(model, options)) count(spec, true);
  budgets.pinned_bytes = std::max(budgets.pinned_bytes, 2 * largest);
  for (size_t role = 0; role < kNumRoles; ++role) {
    if (placement[role] == Tier::kDevice) budgets.device_bytes += budgets.role_bytes[role];
    if (placement[role] == Tier::kPinned) budgets.pinned_bytes += budgets.role_bytes[role];
  }
  return budgets;
}

TileSizes TilesWithin(const hf::ModelConfig& config, const ModelOptions& options,
                      const Placement& placement, uint64_t device_bytes, uint64_t pinned_bytes) {
  constexpr uint64_t kLeases = 4;  // for whose tiles there is room
  const auto has_room = [&](const MinimumBudgets& least, Tier tier, uint64_t least_bytes,
                            uint64_t given_bytes) {
    uint64_t resting = 0;
    for (size_t role = 0; role < kNumRoles; ++role)
      if (placement[role] == tier) resting += least.role_bytes[role];
    return given_bytes >= resting && (given_bytes - resting) / kLeases >= least_bytes - resting;
  };
  ModelOptions within = options;
  TileSizes& tiles = within.tiles;
  tiles = TilesOf(Describe(config), options);
  while (tiles.values > kMostOfSmallModels) {
    const MinimumBudgets least = SmallestBudgets(config, within, placement);
    if (has_room(least, Tier::kDevice, least.device_bytes, device_bytes) &&
        has_room(least, Tier::kPinned, least.pinned_bytes, pinned_bytes))
      break;
    tiles.values = std::max(tiles.values / 2, kMostOfSmallModels);
    tiles.state = std::min(tiles.state, tiles.values);
  }
  return tiles;
}

StateBytes ModelStateBytes(const hf::ModelConfig& config, const ModelOptions& options) {
  StateBytes bytes;
  const Description model = Describe(config);
  const TileSizes tiles = TilesOf(model, options);
  for (const ParameterShape& parameter : model.parameters) {
    for (const TensorSpec& spec : ParameterTensorSpecs(parameter, options, tiles))
      Count(spec, &bytes);
  }
  for (const TensorSpec& spec : ActivationSpecs(model, options)) Count(spec, &bytes);
  return bytes;
}

StateBytes ConversionBytes(const hf::ModelConfig& config, const ModelOptions& options,
                           StateFormat from) {
  ModelOptions before = options;
  before.state_format = from;
  const bool writes_weights =
      from == StateFormat::kCompact || options.state_format == StateFormat::kCompact;
  StateBytes bytes;
  const Description model = Describe(config);
  const TileSizes tiles = TilesOf(model, options);
  for (const ParameterShape& parameter : model.parameters) {
    const auto old = ParameterTensorSpecs(parameter, before, tiles);
    for (const TensorSpec& spec : old)
      if (!spec.transient) Count(spec, &bytes);
    for (const TensorSpec& spec : ParameterTensorSpecs(parameter, options, tiles)) {
      const bool is_kept = std::find(old.begin(), old.end(), spec) != old.end();
      const bool is_written = !is_kept || (spec.role == Role::kParameter && writes_weights);
      if (!spec.transient && is_written) Count(spec, &bytes);
    }
  }
  return bytes;
}

}  // namespace spillway::trainer
