// SPDX-License-Identifier: Apache-2.0
//
// Tests tiles and budgets as functions of the configuration.

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "tests/seed.h"
#include "tests/trainer/small_model.h"
#include "tools/hf/model_types.h"
#include "tools/trainer/description.h"
#include "tools/trainer/model.h"
#include "tools/trainer/parameters.h"

namespace spillway::trainer {
namespace {

hf::ModelConfig SmolLm2() {
  hf::ModelConfig config;
  config.vocab_size = 49152;
  config.hidden_size = 576;
  config.intermediate_size = 1536;
  config.num_layers = 30;
  config.num_heads = 9;
  config.num_kv_heads = 3;
  config.head_dim = 64;
  config.tie_word_embeddings = true;
  return config;
}

TEST(TileRows, CoverTheRowsEvenlyWithinTheLimit) {
  EXPECT_EQ(TileRows(10, 100, 1000), 10);
  EXPECT_EQ(TileRows(11, 100, 1000), 6);
  EXPECT_EQ(TileRows(5, 100000, 1000), 1) << "a row is never cut";
  EXPECT_EQ(TileRows(49152, 576, 512 << 10), 896);
  EXPECT_EQ(TileRows(49152, 576, 1 << 20), 1760);
  EXPECT_EQ(TileRows(1536, 576, 512 << 10), 768);
  EXPECT_EQ(TileRows(25600, 76800, 4 << 20), 48);
  EXPECT_EQ(WeightTileRows(25600, 76800, {16 << 20, 4 << 20}), 192);
  for (int64_t rows : {1, 31, 32, 33, 500, 4097}) {
    for (int64_t width : {1, 7, 576, 5000}) {
      const int64_t tile = TileRows(rows, width, 65536);
      EXPECT_GE(tile, 1);
      EXPECT_LE(tile, rows);
      EXPECT_LE(tile * width, std::max<int64_t>(65536, width));
    }
  }
}

// A model whose only weights that count are two matrices of the vocabulary.
hf::ModelConfig Wide(int64_t vocabulary, int64_t width) {
  hf::ModelConfig config = SmallConfig();
  config.vocab_size = vocabulary;
  config.hidden_size = width;
  config.intermediate_size = 1;
  config.num_layers = 1;
  config.tie_word_embeddings = false;
  return config;
}

uint64_t CountParameters(const Description& model) {
  uint64_t count = 0;
  for (const ParameterShape& parameter : model.parameters)
    count += static_cast<uint64_t>(parameter.elements());
  return count;
}

TEST(Tiles, GrowWithTheModel) {
  const auto tiles_of = [](int64_t vocabulary, int64_t width) {
    return TilesOf(Describe(Wide(vocabulary, width)), {});
  };
  constexpr int64_t kMi = 1 << 20;
  EXPECT_EQ(TilesOf(Describe(SmallConfig()), {}), (TileSizes{1 << 16, 1 << 16}));
  EXPECT_EQ(tiles_of(24 << 10, 512), (TileSizes{1 << 17, 1 << 17}));
  // Up to 2^28 parameters a tile has at most 1 Mi elements.
  const Description below = Describe(Wide((1 << 17) - 64, 1024));
  EXPECT_LT(CountParameters(below), uint64_t{1} << 28);
  EXPECT_GT(CountParameters(below), (uint64_t{1} << 28) - (uint64_t{1} << 18));
  EXPECT_EQ(TilesOf(below, {}), (TileSizes{kMi, kMi}));
  EXPECT_EQ(tiles_of(1 << 17, 1024), (TileSizes{2 * kMi, 2 * kMi}));
  EXPECT_EQ(tiles_of(1 << 18, 1024), (TileSizes{4 * kMi, 4 * kMi}));
  EXPECT_EQ(tiles_of(1 << 19, 1024), (TileSizes{8 * kMi, 4 * kMi}));
  EXPECT_EQ(tiles_of(1 << 20, 1024), (TileSizes{16 * kMi, 4 * kMi}));
  EXPECT_EQ(tiles_of(1 << 26, 1024), (TileSizes{16 * kMi, 4 * kMi}));
}

TEST(Tiles, AreThoseOfTheOptions) {
  const Description model = Describe(SmolLm2());
  ModelOptions options;
  options.tiles = {1 << 26, 1 << 25};
  EXPECT_EQ(TilesOf(model, options), options.tiles) << "larger than the model's own";
  options.tiles = {1 << 16, 0};
  EXPECT_EQ(TilesOf(model, options), (TileSizes{1 << 16, 1 << 16}));
  options.tiles = {0, 1 << 16};
  EXPECT_EQ(TilesOf(model, options), (TileSizes{1 << 20, 1 << 16}));
  options.sequence = 1;
  EXPECT_TRUE(CheckOptions(options).ok());
  for (const int64_t bad : {int64_t{-1}, (int64_t{1} << 48) + 1}) {
    options.tiles = {bad, 0};
    EXPECT_TRUE(absl::IsInvalidArgument(CheckOptions(options))) << bad;
    options.tiles = {0, bad};
    EXPECT_TRUE(absl::IsInvalidArgument(CheckOptions(options))) << bad;
  }
}

TEST(Tiles, OfStateLieWithinThoseOfTheWeight) {
  std::mt19937_64 random(test::Seed());
  const auto draw = [&](int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random);
  };
  for (int round = 0; round < 2000; ++round) {
    const int64_t rows = draw(1, 5000), width = draw(1, 3000);
    TileSizes tiles = {draw(1, 1 << draw(1, 24)), 0};
    tiles.state = draw(1, tiles.values);
    SCOPED_TRACE(absl::StrCat(rows, " x ", width, " in ", tiles.values, ", ", tiles.state));
    const int64_t of_weight = WeightTileRows(rows, width, tiles);
    const int64_t of_state = TileRows(rows, width, tiles.state);
    ASSERT_GE(of_weight, of_state);
    ASSERT_LE(of_weight, rows);
    ASSERT_TRUE(of_weight == rows || of_weight % of_state == 0);
    ASSERT_LE(of_weight * width, std::max(tiles.values, width));
    // With the same limits, tiles of weight and state are the same.
    ASSERT_EQ(WeightTileRows(rows, width, {tiles.values, tiles.values}),
              TileRows(rows, width, tiles.values));
  }
}

TEST(Tiles, OfEachFormatsStateCoverTheWeightsRows) {
  for (const StateFormat format :
       {StateFormat::kF32, StateFormat::kBf16, StateFormat::k8Bit, StateFormat::kCompact}) {
    ModelOptions options;
    options.precision = Precision::kBf16;
    options.state_format = format;
    const TileSizes tiles = {6 * 32 * 576, 2 * 32 * 576};
    for (const ParameterShape& shape : ListParameters(SmolLm2())) {
      const std::vector<TensorSpec> specs = ParameterTensorSpecs(shape, options, tiles);
      const TensorSpec& weight = specs.front();
      for (const TensorSpec& spec : specs) {
        SCOPED_TRACE(spec.name);
        const bool is_value = spec.role == Role::kParameter || spec.role == Role::kGradient;
        if (is_value || shape.shape.size() == 1) {
          EXPECT_EQ(spec.num_tiles(), weight.num_tiles());
          continue;
        }
        EXPECT_EQ(spec.num_rows(), weight.num_rows());
        EXPECT_EQ(spec.tile_rows, TileRows(shape.shape[0], shape.shape[1], tiles.state));
        if (shape.shape[0] == spec.tile_rows) continue;
        EXPECT_GT(spec.num_tiles(), weight.num_tiles());
      }
    }
  }
}

// A store that does not say what its tiles are was written when 1 Mi elements were the most.
TEST(Tiles, OfAStoreAreThoseThatItWasWrittenWith) {
  const Description large = Describe(Wide(1 << 22, 1024)), small = Describe(SmallConfig());
  EXPECT_EQ(TilesOfStore(large, {}), (TileSizes{1 << 20, 1 << 20}));
  EXPECT_EQ(TilesOfStore(small, {}), TilesOf(small, {}));
  EXPECT_EQ(TilesOfStore(large, {500, 100}), (TileSizes{500, 100}));
}

// A large model in a random recipe and placement.
struct LargeModel {
  hf::ModelConfig config;
  ModelOptions options;
  Placement placement;

  explicit LargeModel(std::mt19937_64& random) {
    const auto draw = [&](int64_t least, int64_t most) {
      return std::uniform_int_distribution<int64_t>(least, most)(random);
    };
    config = Wide(draw(1 << 19, 1 << 22), draw(1 << 10, 1 << 12));
    config.intermediate_size = draw(1, 1 << 16);
    options.precision = static_cast<Precision>(draw(0, kNumPrecisions - 1));
    options.gradient_dtype = draw(0, 1) == 0 ? DType::kF32 : ElementType(options.precision);
    const int64_t most_format = options.precision == Precision::kFp32 ? 2 : 3;
    options.state_format = static_cast<StateFormat>(draw(0, most_format));
    options.sequence = draw(1, 4096);
    options.micro_batch = draw(1, 8);
    options.training = draw(0, 3) > 0;
    for (auto& tier : placement) {
      const std::array<std::optional<Tier>, 5> tiers = {std::nullopt, std::nullopt, Tier::kNvme,
                                                        Tier::kPinned, Tier::kDevice};
      tier = tiers.at(static_cast<size_t>(draw(0, 4)));
    }
  }
  MinimumBudgets SmallestWith(const TileSizes& tiles) const {
    ModelOptions with = options;
    with.tiles = tiles;
    return SmallestBudgets(config, with, placement);
  }
  TileSizes Within(uint64_t device_bytes, uint64_t pinned_bytes) const {
    return TilesWithin(config, options, placement, device_bytes, pinned_bytes);
  }
};

// Budgets that hold tiles of 1 Mi elements hold the tiles that are chosen for them.
TEST(TilesWithin, RefuseNoBudgetsThatHoldTilesOf1Mi) {
  const uint64_t first = test::Seed();
  int smaller = 0, larger = 0;
  for (uint64_t seed = first; seed != first + 200; ++seed) {
    SCOPED_TRACE(test::SeedLine(seed));
    std::mt19937_64 random(seed);
    const LargeModel model(random);
    const TileSizes whole = TilesOf(Describe(model.config), model.options);
    ASSERT_GT(whole.values, 1 << 20);
    const MinimumBudgets least = model.SmallestWith({1 << 20, 1 << 20});
    const MinimumBudgets most = model.SmallestWith(whole);
    const auto between = [&](uint64_t a, uint64_t b) {
      return std::uniform_int_distribution<uint64_t>(a, std::max(a, 8 * b))(random);
    };
    const uint64_t device = between(least.device_bytes, most.device_bytes);
    const uint64_t pinned = between(least.pinned_bytes, most.pinned_bytes);
    const TileSizes tiles = model.Within(device, pinned);
    EXPECT_GE(tiles.values, 1 << 20);
    EXPECT_LE(tiles.values, whole.values);
    EXPECT_LE(tiles.state, std::min(tiles.values, whole.state));
    const MinimumBudgets chosen = model.SmallestWith(tiles);
    EXPECT_LE(chosen.device_bytes, device);
    EXPECT_LE(chosen.pinned_bytes, pinned);
    (tiles == whole ? larger : smaller) += 1;
    const MinimumBudgets tight =
        model.SmallestWith(model.Within(least.device_bytes, least.pinned_bytes));
    EXPECT_LE(tight.device_bytes, least.device_bytes);
    EXPECT_LE(tight.pinned_bytes, least.pinned_bytes);
    EXPECT_EQ(model.Within(kUnlimited, kUnlimited), whole);
  }
  EXPECT_GT(smaller, 0);
  EXPECT_GT(larger, 0);
}

TEST(TilesWithin, LeaveSmallModelsAsTheyAre) {
  ModelOptions options;
  options.sequence = 8;
  for (const hf::ModelConfig& config : {SmallConfig(), SmolLm2()})
    EXPECT_EQ(TilesWithin(config, options, {}, 1, 1), TilesOf(Describe(config), options));
}

TEST(Budgets, OfSmolLm2) {
  ModelOptions options;
  options.precision = Precision::kFp16Amp;
  options.gradient_dtype = DType::kF16;
  options.sequence = 256;
  EXPECT_EQ(TilesOf(Describe(SmolLm2()), options), (TileSizes{1 << 20, 1 << 20}));
  const MinimumBudgets half = SmallestBudgets(SmolLm2(), options);
  EXPECT_EQ(half.device_bytes, uint64_t{1760} * 576 * 2);
  // In units of a weight tile, weight and gradient take 1 each, the master and both moments 2 each:
  // 1+1+2+2 before the last.
  EXPECT_EQ(half.pinned_bytes, uint64_t{1760} * 576 * 2 * (1 + 1 + 2 + 2 + 5 * 2));
  const StateBytes bytes = ModelStateBytes(SmolLm2(), options);
  EXPECT_EQ(bytes.committed, uint64_t{134515008} * 14);
  EXPECT_EQ(bytes.transient, uint64_t{134515008} * 2 + uint64_t{30} * 256 * 576 * 2);

  // The gradients rest in pinned memory, and the update's other tiles need room beside them.
  Placement placement;
  placement[static_cast<size_t>(Role::kGradient)] = Tier::kPinned;
  const MinimumBudgets placed = SmallestBudgets(SmolLm2(), options, placement);
  EXPECT_EQ(placed.device_bytes, half.device_bytes);
  const uint64_t gradients = placed.role_bytes[static_cast<size_t>(Role::kGradient)];
  EXPECT_GE(gradients, uint64_t{134515008} * 2);
  EXPECT_EQ(placed.pinned_bytes, gradients + uint64_t{1760} * 576 * 2 * (1 + 2 + 2 + 4 * 2));

  // bf16 takes as many bytes as fp16, except that the residual is in fp32. A tensor in fp32 has
  // four bytes per element for the weight, four for the gradient, and no master.
  options.precision = Precision::kBf16;
  options.gradient_dtype = DType::kBF16;
  EXPECT_EQ(SmallestBudgets(SmolLm2(), options).pinned_bytes, half.pinned_bytes);
  EXPECT_EQ(ModelStateBytes(SmolLm2(), options).committed, bytes.committed);
  const uint64_t transient = bytes.transient + uint64_t{30} * 256 * 576 * 2;
  EXPECT_EQ(ModelStateBytes(SmolLm2(), options).transient, transient);
  options.groups.fp32 = {"*embed*"};
  constexpr uint64_t kEmbedding = uint64_t{49152} * 576;
  EXPECT_EQ(SmallestBudgets(SmolLm2(), options).device_bytes, uint64_t{1760} * 576 * 4);
  EXPECT_EQ(ModelStateBytes(SmolLm2(), options).committed, bytes.committed - kEmbedding * 2);
  EXPECT_EQ(ModelStateBytes(SmolLm2(), options).transient, transient + kEmbedding * 2);
  options.groups.fp32 = {};

  options.precision = Precision::kFp32;
  options.gradient_dtype = DType::kF32;
  EXPECT_EQ(SmallestBudgets(SmolLm2(), options).device_bytes, uint64_t{1760} * 576 * 4);
  EXPECT_EQ(ModelStateBytes(SmolLm2(), options).committed, uint64_t{134515008} * 12);
  options.training = false;
  EXPECT_EQ(SmallestBudgets(SmolLm2(), options).pinned_bytes, uint64_t{1760} * 576 * 4 * 2);
  EXPECT_EQ(ModelStateBytes(SmolLm2(), options).transient, 0);
}

class StateBytesOf : public ::testing::TestWithParam<std::string> {};

TEST_P(StateBytesOf, AreThoseThatAModelRegisters) {
  hf::ModelConfig config = SmallConfigOf(GetParam());
  for (const int way : {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10}) {
    config.tie_word_embeddings = way % 3 != 0;
    ModelOptions options;
    if (way > 8) options.tiles = way == 9 ? TileSizes{500, 100} : TileSizes{1 << 30, 1 << 20};
    if (way > 5) {
      options.precision = way == 6 ? Precision::kFp16Amp : Precision::kBf16;
      options.gradient_dtype = ElementType(options.precision);
      if (way < 8) options.groups.fp32 = {"*norm*", "*embed*", "*.ln_*", "*.wte.*"};
    }
    options.sequence = 9;
    options.micro_batch = 3;
    options.checkpoint_activations = way % 2 == 0;
    options.accumulate = way < 2 ? 1 : 3;
    options.accumulation_order =
        way < 4 ? AccumulationOrder::kMicroBatch : AccumulationOrder::kLayer;
    SCOPED_TRACE(way);
    const SmallModel small(config, options);
    StateBytes registered;
    uint64_t largest = 0;
    for (const TensorSpec& spec : small.engine.specs()) {
      (spec.transient ? registered.transient : registered.committed) += spec.size_bytes();
      if (spec.role != Role::kMasterWeight && spec.role != Role::kMoment)
        largest = std::max(largest, spec.tile_bytes(0));
    }
    const StateBytes expected = ModelStateBytes(config, options);
    EXPECT_EQ(expected.committed, registered.committed);
    EXPECT_EQ(expected.transient, registered.transient);
    EXPECT_GE(SmallestBudgets(config, options).device_bytes, largest);
  }
}

std::vector<std::string> ModelTypeNames() {
  std::vector<std::string> names;
  for (const auto& [type, row] : hf::ModelTypes().items()) names.push_back(type);
  return names;
}
INSTANTIATE_TEST_SUITE_P(, StateBytesOf, ::testing::ValuesIn(ModelTypeNames()),
                         [](const auto& each) { return each.param; });

TEST(Parameters, AreHuggingFaces) {
  const auto parameters = ListParameters(SmolLm2());
  EXPECT_EQ(parameters.size(), 272);
  EXPECT_EQ(parameters[0].name, "model.embed_tokens.weight");
  EXPECT_EQ(parameters[1 + 29 * 9].name, "model.layers.29.input_layernorm.weight");
  EXPECT_EQ(parameters[9 + 29 * 9].name, "model.layers.29.mlp.down_proj.weight");
  EXPECT_EQ(parameters[271].name, "model.norm.weight");
  hf::ModelConfig untied = SmolLm2();
  untied.tie_word_embeddings = false;
  EXPECT_EQ(ListParameters(untied)[272].name, "lm_head.weight");
}

}  // namespace
}  // namespace spillway::trainer
