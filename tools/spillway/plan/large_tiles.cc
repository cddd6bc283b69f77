// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/plan/large_tiles.h"

#include <algorithm>
#include <vector>

#include "spillway/engine.h"
#include "tools/trainer/parameters.h"

namespace spillway::command {
namespace {

// A tile takes at most this part of a budget: an update holds five together, and as many are being
// read ahead and written behind.
constexpr uint64_t kBudgetParts = 32;
// The leases of a step that is simulated within a tenth of a second, and those of the longest one
// that is simulated at all.
constexpr double kLeases = 16'000;
constexpr double kMostLeases = 1.5e6;
constexpr double kFewestTiles = 256;  // of weights
constexpr int64_t kLayersOfBound = 16;

// The most bytes that an element of a weight has: as a weight or gradient, and as state.
struct ElementSizes {
  double values = 0;
  double state = 0;
};

ElementSizes SizesOf(const trainer::ModelOptions& options) {
  constexpr int64_t kElements = 1 << 16;  // whole blocks of every state format
  const trainer::ParameterShape shape = {.name = "", .shape = {1, kElements}};
  ElementSizes sizes;
  for (const TensorSpec& spec :
       trainer::ParameterTensorSpecs(shape, options, {kElements, kElements})) {
    const bool is_state = spec.role == Role::kMasterWeight || spec.role == Role::kMoment;
    double& most = is_state ? sizes.state : sizes.values;
    most = std::max(most, static_cast<double>(spec.size_bytes()) / kElements);
  }
  return sizes;
}

// Leases of a tile of a weight, its gradient and its state in a step: forward, again if activations
// are not saved, backward for the input's gradient and for the weight's, of each micro-batch; and
// in the update.
double LeasesOfTile(int64_t micro_batches) { return 4.0 * static_cast<double>(micro_batches) + 6; }

// The most bytes of a layer's weights and gradients.
double LayerBytes(const hf::ModelConfig& config, const trainer::ModelOptions& options) {
  hf::ModelConfig one = config, two = config;
  one.num_layers = 1;
  two.num_layers = 2;
  one.windows.clear();
  two.windows.clear();
  double elements = 0;
  for (const trainer::ParameterShape& shape : trainer::ListParameters(two))
    elements += static_cast<double>(shape.elements());
  for (const trainer::ParameterShape& shape : trainer::ListParameters(one))
    elements -= static_cast<double>(shape.elements());
  return elements * (static_cast<double>(ElementBytes(trainer::ElementType(options.precision))) +
                     static_cast<double>(ElementBytes(options.gradient_dtype)));
}

}  // namespace

void MergeMicroBatches(const hf::ModelConfig& config, uint64_t device_bytes,
                       trainer::ModelOptions* options) {
  if (!options->by_layer()) return;
  if (2 * LayerBytes(config, *options) > static_cast<double>(device_bytes)) return;
  int64_t fewest = 2;
  while (options->accumulate % fewest != 0) ++fewest;
  options->micro_batch *= options->accumulate / fewest;
  options->accumulate = fewest;
}

LargeTiles ChooseLargeTiles(const Question& question, const plan::PlanOptions& budgets,
                            int64_t micro_batches) {
  const trainer::ModelOptions& options = question.options;
  const trainer::TileSizes own = trainer::TilesOf(trainer::Describe(question.config()), options);
  const ElementSizes bytes = SizesOf(options);
  const auto parameters = static_cast<double>(question.num_parameters);
  const auto most = [&](uint64_t budget, double of_element) {
    return of_element == 0 ? parameters : static_cast<double>(budget / kBudgetParts) / of_element;
  };
  // Weights and gradients pass through both tiers, state through memory.
  const double most_values =
      std::min(most(budgets.device_bytes, bytes.values), most(budgets.pinned_bytes, bytes.values));
  const double most_state = most(budgets.pinned_bytes, bytes.state);
  const double of_tile = LeasesOfTile(micro_batches);
  const double wanted = parameters / std::max(kFewestTiles, kLeases / of_tile);

  LargeTiles tiles = {.layers = question.config().num_layers};
  const auto between = [](int64_t least, double value, double limit) {
    return std::max(least, static_cast<int64_t>(std::min(value, limit)));
  };
  tiles.sizes.values = between(own.values, wanted, most_values);
  tiles.sizes.state = between(own.state, wanted, most_state);
  const auto layers = static_cast<double>(tiles.layers);
  const double tensors = 12 * layers;
  const double leases = (parameters / static_cast<double>(tiles.sizes.values) + tensors) * of_tile +
                        4 * (parameters / static_cast<double>(tiles.sizes.state));
  if (leases <= kMostLeases) return tiles;
  tiles.layers = std::min(tiles.layers, kLayersOfBound);
  const double share = static_cast<double>(tiles.layers) / layers;
  tiles.sizes.values = tiles.sizes.state =
      std::max(own.values, static_cast<int64_t>(share * wanted));
  return tiles;
}

}  // namespace spillway::command
