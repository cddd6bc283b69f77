// SPDX-License-Identifier: Apache-2.0
//
// Tests the properties of the model that hold for any weights: the same bits along every path,
// accumulation, overflow, the tiles leased and declared, and errors.

#include "tools/trainer/model.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/exhaustive.h"
#include "tests/trainer/small_model.h"
#include "tools/trainer/kernels/convert.h"

namespace spillway::trainer {
namespace {

// Returns a configuration whose larger tensors have several tiles.
hf::ModelConfig TiledConfig() {
  hf::ModelConfig config = SmallConfig();
  config.vocab_size = 2100;
  config.hidden_size = 33;
  config.intermediate_size = 2003;
  return config;
}

// The precision of a model, and the patterns of the parameters that are kept in fp32.
struct Held {
  std::string name;
  Precision precision = Precision::kFp32;
  std::vector<std::string> fp32 = {};
};

ModelOptions Options(const Held& held, bool checkpoint = true, int64_t accumulate = 1) {
  ModelOptions options;
  options.precision = held.precision;
  options.gradient_dtype = ElementType(held.precision);
  options.groups.fp32 = held.fp32;
  options.checkpoint_activations = checkpoint;
  options.sequence = 9;
  options.micro_batch = 2;
  options.accumulate = accumulate;
  return options;
}

ModelOptions Options(Precision precision = Precision::kFp32, bool checkpoint = true,
                     int64_t accumulate = 1) {
  return Options(Held{.name = "", .precision = precision}, checkpoint, accumulate);
}

// The results of a step: loss, norm and all gradient bytes.
struct Outcome {
  uint64_t loss = 0;
  uint64_t sum_of_squares = 0;
  std::map<std::string, std::vector<std::byte>> gradients;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

Outcome TrainAStep(SmallModel& small, const hf::ModelConfig& config, const ModelOptions& options,
                   double scale = 64) {
  const TestBatch batch =
      RandomBatch(config, options.accumulate * options.sequence * options.micro_batch, 11);
  Outcome outcome;
  const auto loss = small.model->Train(
      {.inputs = batch.inputs, .targets = batch.targets, .gradient_scale = scale});
  EXPECT_TRUE(loss.ok()) << loss.status();
  outcome.loss = std::bit_cast<uint64_t>(loss.value_or(0));
  outcome.sum_of_squares = std::bit_cast<uint64_t>(small.model->gradients().sum_of_squares);
  for (const Parameter& parameter : small.model->parameters()) {
    const auto bytes = small.engine.Values<std::byte>(parameter.tensors.gradient);
    outcome.gradients[parameter.name] = {bytes.begin(), bytes.end()};
  }
  return outcome;
}

class EachPrecision : public testing::TestWithParam<Held> {};

TEST_P(EachPrecision, CheckpointingDoesNotChangeABit) {
  for (const hf::ModelConfig& config : {SmallConfig(), TiledConfig()}) {
    const ModelOptions with = Options(GetParam(), true, 2);
    const ModelOptions without = Options(GetParam(), false, 2);
    SmallModel recomputed(config, with);
    SmallModel saved(config, without);
    EXPECT_TRUE(TrainAStep(recomputed, config, with) == TrainAStep(saved, config, without));
  }
}

TEST_P(EachPrecision, TheSameThreadsGiveTheSameBits) {
  const hf::ModelConfig config = TiledConfig();
  const ModelOptions options = Options(GetParam(), true, 2);
  for (int threads : {1, 2, 3}) {
    SmallModel one(config, options, threads);
    SmallModel other(config, options, threads);
    EXPECT_TRUE(TrainAStep(one, config, options) == TrainAStep(other, config, options));
  }
}

TEST_P(EachPrecision, TheNormIsThatOfTheStoredGradients) {
  for (bool tied : {true, false}) {
    hf::ModelConfig config = TiledConfig();
    config.tie_word_embeddings = tied;
    const ModelOptions options = Options(GetParam(), true, 2);
    SmallModel small(config, options);
    TrainAStep(small, config, options);
    double sum = 0;
    for (const Parameter& parameter : small.model->parameters()) {
      const TensorSpec& spec = small.engine.Spec(parameter.tensors.gradient);
      std::vector<float> values(spec.size_bytes() / ElementBytes(spec.dtype));
      ToFloats(spec.dtype, small.engine.Values<std::byte>(parameter.tensors.gradient).data(),
               static_cast<int64_t>(values.size()), values.data());
      for (float g : values) sum += static_cast<double>(g) * g;
    }
    EXPECT_NEAR(small.model->gradients().sum_of_squares, sum, 1e-12 * sum) << "tied " << tied;
  }
}

TEST_P(EachPrecision, OrdersOfAccumulationGiveTheSameBits) {
  for (const bool tied : {true, false}) {
    hf::ModelConfig config = TiledConfig();
    config.tie_word_embeddings = tied;
    for (const bool checkpoint : {true, false}) {
      for (const int64_t accumulate : GridOf<int64_t>({1, 3, 8})) {
        for (const double scale : {64.0, 1e30}) {  // the second overflows under fp16-amp
          SCOPED_TRACE(testing::Message()
                       << "tied " << tied << ", checkpoint " << checkpoint << ", " << accumulate
                       << " micro-batches, scale " << scale);
          ModelOptions options = Options(GetParam(), checkpoint, accumulate);
          SmallModel by_micro_batch(config, options);
          options.accumulation_order = AccumulationOrder::kLayer;
          SmallModel by_layer(config, options);
          const Outcome expected = TrainAStep(by_micro_batch, config, options, scale);
          EXPECT_EQ(by_micro_batch.model->gradients().finite,
                    scale == 64 || GetParam().precision != Precision::kFp16Amp);
          EXPECT_TRUE(TrainAStep(by_layer, config, options, scale) == expected);
          EXPECT_TRUE(TrainAStep(by_layer, config, options, scale) == expected) << "again";
        }
      }
    }
  }
}

// Because the leases do not depend on the tokens, the engine can plan the step, and the model
// declares no uses.
TEST_P(EachPrecision, StepsOfOtherTokensLeaseTheSameTiles) {
  const hf::ModelConfig config = TiledConfig();
  for (const auto order : {AccumulationOrder::kMicroBatch, AccumulationOrder::kLayer}) {
    ModelOptions options = Options(GetParam(), false, 3);
    options.accumulation_order = order;
    SmallModel small(config, options);
    TrainAStep(small, config, options);
    const std::vector<Use> first = small.engine.log();
    const TestBatch step = RandomBatch(config, 3 * options.sequence * options.micro_batch, 99);
    small.engine.ClearLog();
    ASSERT_TRUE(small.model->Train({.inputs = step.inputs, .targets = step.targets}).ok());
    EXPECT_TRUE(small.engine.log() == first);
    EXPECT_TRUE(small.engine.declared().empty());
    EXPECT_EQ(small.engine.most_held(), 1);
  }
}

TEST_P(EachPrecision, AForwardPassDeclaresExactlyWhatItLeases) {
  for (const bool tied : {true, false}) {
    hf::ModelConfig config = TiledConfig();
    config.tie_word_embeddings = tied;
    const ModelOptions options = Options(GetParam(), false);
    SmallModel small(config, options);
    const TestBatch batch = RandomBatch(config, options.sequence * options.micro_batch, 98);
    small.engine.ClearLog();
    ASSERT_TRUE(small.model->Loss(batch.inputs, batch.targets).ok());
    EXPECT_TRUE(small.engine.declared() == small.engine.log());
    small.engine.ClearLog();
    ASSERT_TRUE(small.model->NextTokenLogits(std::span(batch.inputs).first(3)).ok());
    EXPECT_TRUE(small.engine.declared() == small.engine.log());
    EXPECT_EQ(small.engine.most_held(), 1);
  }
}

// Between two uses of a layer's weight in the same direction, no weight of another layer is leased.
// An engine that retains the layer used last therefore reads each layer once per direction.
TEST(Model, ByLayerAllMicroBatchesLeaseALayerBeforeTheNext) {
  const hf::ModelConfig config = TiledConfig();
  ModelOptions options = Options(Precision::kFp32, true, 4);
  options.accumulation_order = AccumulationOrder::kLayer;
  SmallModel small(config, options);
  TrainAStep(small, config, options);
  small.engine.ClearLog();
  TrainAStep(small, config, options);
  // Counts the visits to each tile of the embedding, which is also the head, and to each layer.
  // Consecutive leases of the same place are one visit.
  std::map<std::string, int> visits;
  std::string last;
  for (const Use& use : small.engine.log()) {
    const TensorSpec& spec = small.engine.Spec(use.tile.tensor);
    if (spec.role != Role::kParameter || spec.name.find("norm") != std::string::npos) continue;
    const size_t layer = spec.name.find("layers.");
    const std::string place = layer == std::string::npos
                                  ? "embedding " + std::to_string(use.tile.tile)
                                  : spec.name.substr(layer, sizeof("layers.0") - 1);
    if (place != last) ++visits[place];
    last = place;
  }
  ASSERT_GT(visits.size(), 3U);
  // The last layer has two visits as well: the head is leased between its forward and its backward
  // pass.
  for (const auto& [place, count] : visits)
    EXPECT_EQ(count, place.starts_with("embedding") ? 3 : 2) << place;
}

TEST_P(EachPrecision, ForwardAloneGivesTheTrainingLoss) {
  const hf::ModelConfig config = TiledConfig();
  ModelOptions options = Options(GetParam());
  const TestBatch batch = RandomBatch(config, options.sequence * options.micro_batch);
  SmallModel training(config, options);
  const auto loss = training.model->Train({.inputs = batch.inputs, .targets = batch.targets});
  ASSERT_TRUE(loss.ok());
  options.training = false;
  SmallModel forward(config, options);
  ASSERT_TRUE(forward.status.ok()) << forward.status;
  const auto alone = forward.model->Loss(batch.inputs, batch.targets);
  ASSERT_TRUE(alone.ok());
  EXPECT_EQ(std::bit_cast<uint64_t>(*loss), std::bit_cast<uint64_t>(*alone));
  EXPECT_FALSE(forward.model->Train({.inputs = batch.inputs, .targets = batch.targets}).ok());
}

INSTANTIATE_TEST_SUITE_P(Precisions, EachPrecision,
                         testing::ValuesIn(SampleOf<Held>(
                             {{"Fp32", Precision::kFp32},
                              {"Fp16Amp", Precision::kFp16Amp},
                              {"Fp16AmpFp32Norms", Precision::kFp16Amp, {"*norm*"}},
                              {"Bf16", Precision::kBf16},
                              {"Bf16Fp32Embedding", Precision::kBf16, {"*embed*", "*norm*"}},
                              {"Bf16Fp32Weights", Precision::kBf16, {"*"}}})),
                         [](const auto& test) { return test.param.name; });

// A parameter kept in fp32 is its own master and has an fp32 gradient, whatever the type of the
// others.
TEST(Model, Fp32ParametersAreInFp32Throughout) {
  hf::ModelConfig config = SmallConfig();
  const ModelOptions options = Options({"", Precision::kBf16, {"*norm*", "*layers.1.mlp.up*"}});
  SmallModel small(config, options);
  ASSERT_TRUE(small.status.ok()) << small.status;
  int kept = 0;
  for (const Parameter& parameter : small.model->parameters()) {
    const TensorsOfParameter& of = parameter.tensors;
    const bool is_fp32 = options.groups.IsFp32(parameter.name);
    kept += is_fp32 ? 1 : 0;
    SCOPED_TRACE(parameter.name);
    EXPECT_EQ(small.engine.Spec(of.weight).dtype, is_fp32 ? DType::kF32 : DType::kBF16);
    EXPECT_EQ(small.engine.Spec(of.gradient).dtype, is_fp32 ? DType::kF32 : DType::kBF16);
    EXPECT_EQ(of.master == of.weight, is_fp32);
    EXPECT_EQ(of.state.size(), is_fp32 ? 2U : 3U);
  }
  EXPECT_EQ(kept, 6);
}

TEST(Model, WeightsInFp32BringLogitsNearerToFp32s) {
  const hf::ModelConfig config = SmallConfig();
  ModelOptions options = Options(Held{"", Precision::kBf16, {"*"}});
  options.gradient_dtype = DType::kF32;
  options.training = false;
  SmallModel kept(config, options);
  options.groups.fp32 = {};
  SmallModel rounded(config, options);
  options.precision = Precision::kFp32;
  SmallModel exact(config, options);
  const TestBatch batch = RandomBatch(config, options.sequence);
  const auto expected = exact.model->NextTokenLogits(batch.inputs);
  const auto distance = [&](SmallModel& of) {
    const auto logits = of.model->NextTokenLogits(batch.inputs);
    EXPECT_TRUE(logits.ok()) << logits.status();
    double sum = 0;
    for (size_t i = 0; i < logits->size(); ++i) sum += std::pow((*logits)[i] - (*expected)[i], 2.0);
    return std::sqrt(sum);
  };
  EXPECT_GT(distance(kept), 0) << "activations are in bf16";
  EXPECT_LT(distance(kept), distance(rounded));
}

// The head is not tied to the embedding, so the two models differ in the head alone.
TEST(Model, AnFp32HeadIsReadInFp32) {
  hf::ModelConfig config = SmallConfig();
  config.tie_word_embeddings = false;
  ModelOptions options = Options(Held{"", Precision::kBf16, {"lm_head.weight"}});
  options.gradient_dtype = DType::kF32;
  options.training = false;
  SmallModel kept(config, options);
  options.groups.fp32 = {};
  SmallModel rounded(config, options);
  const TestBatch batch = RandomBatch(config, options.sequence);
  const auto of_kept = kept.model->NextTokenLogits(batch.inputs);
  const auto of_rounded = rounded.model->NextTokenLogits(batch.inputs);
  ASSERT_TRUE(of_kept.ok() && of_rounded.ok());
  EXPECT_NE(*of_kept, *of_rounded);
}

TEST(Model, MicroBatchesAddUpToTheBatch) {
  const hf::ModelConfig config = SmallConfig();
  ModelOptions whole = Options();
  whole.micro_batch = 8;
  ModelOptions part = Options();
  part.micro_batch = 2;
  part.accumulate = 4;
  SmallModel at_once(config, whole);
  SmallModel in_parts(config, part);
  const TestBatch batch = RandomBatch(config, whole.sequence * whole.micro_batch);
  const auto loss = at_once.model->Train({.inputs = batch.inputs, .targets = batch.targets});
  ASSERT_TRUE(loss.ok());
  const auto mean = in_parts.model->Train(
      {.inputs = batch.inputs, .targets = batch.targets, .gradient_scale = 0.25});
  ASSERT_TRUE(mean.ok()) << mean.status();
  EXPECT_NEAR(*mean, *loss, 1e-6 * *loss);
  const auto expected = at_once.Gradients();
  for (const auto& [name, gradient] : in_parts.Gradients()) {
    float largest = 0;
    for (float g : expected.at(name)) largest = std::max(largest, std::fabs(g));
    for (size_t i = 0; i < gradient.size(); ++i) {
      ASSERT_NEAR(gradient[i], expected.at(name)[i], 1e-5f * largest) << name << "[" << i << "]";
    }
  }
}

// bf16 has three mantissa bits fewer than fp16, so its tolerances are eight times as wide.
TEST(Model, SixteenBitsStayNearFp32) {
  const hf::ModelConfig config = TiledConfig();
  const ModelOptions full = Options();
  const TestBatch batch = RandomBatch(config, full.sequence * full.micro_batch);
  constexpr double kScale = 1024;
  const StepBatch step = {
      .inputs = batch.inputs, .targets = batch.targets, .gradient_scale = kScale};
  SmallModel exact(config, full);
  const auto expected = exact.model->Train(step);
  ASSERT_TRUE(expected.ok());
  const double norm = std::sqrt(exact.model->gradients().sum_of_squares);
  for (const auto& [precision, coarser] :
       {std::pair(Precision::kFp16Amp, 1.0), std::pair(Precision::kBf16, 8.0)}) {
    SCOPED_TRACE(Name(precision));
    SmallModel rounded(config, Options(precision));
    const auto loss = rounded.model->Train(step);
    ASSERT_TRUE(loss.ok());
    EXPECT_NEAR(*loss, *expected, 2e-3 * coarser * *expected);
    EXPECT_NE(*loss, *expected);
    EXPECT_NEAR(std::sqrt(rounded.model->gradients().sum_of_squares), norm, 0.01 * coarser * norm);
  }
}

TEST(Model, AnOverflowIsSeenInTheGradientsAndAbortsNothing) {
  const hf::ModelConfig config = TiledConfig();
  const ModelOptions options = Options(Precision::kFp16Amp);
  SmallModel small(config, options);
  const TestBatch batch = RandomBatch(config, options.sequence * options.micro_batch);
  for (double scale : {1e7, 1e30, 1e300}) {
    const auto loss = small.model->Train(
        {.inputs = batch.inputs, .targets = batch.targets, .gradient_scale = scale});
    ASSERT_TRUE(loss.ok()) << loss.status();
    EXPECT_TRUE(std::isfinite(*loss));
    EXPECT_FALSE(small.model->gradients().finite) << scale;
  }
  // The next step has finite gradients again.
  ASSERT_TRUE(small.model->Train({.inputs = batch.inputs, .targets = batch.targets}).ok());
  EXPECT_TRUE(small.model->gradients().finite);
}

// Activations exceed the range of fp16 in the forward pass: the loss is unusable, and the gradients
// are reported as not finite.
TEST(Model, AnActivationThatOverflowsMakesTheGradientsNotFinite) {
  const hf::ModelConfig config = SmallConfig();
  const ModelOptions options = Options(Precision::kFp16Amp);
  const WeightSource huge = [](const ParameterShape& parameter) {
    const float value = parameter.name.find("mlp") != std::string::npos ? 6e4f : 1.0f;
    return absl::StatusOr<Reader>([value](uint64_t, std::span<std::byte> out) {
      auto* floats = reinterpret_cast<float*>(out.data());
      std::fill_n(floats, out.size() / sizeof(float), value);
      return absl::OkStatus();
    });
  };
  SmallModel small(config, options, 2, huge);
  ASSERT_TRUE(small.status.ok()) << small.status;
  const TestBatch batch = RandomBatch(config, options.sequence * options.micro_batch);
  ASSERT_TRUE(small.model->Train({.inputs = batch.inputs, .targets = batch.targets}).ok());
  EXPECT_FALSE(small.model->gradients().finite);
}

TEST(Model, NextTokenLogitsAreTheReferences) {
  const hf::ModelConfig config = TiledConfig();
  ModelOptions options = Options();
  options.training = false;
  options.micro_batch = 1;
  SmallModel small(config, options);
  const TestBatch batch = RandomBatch(config, options.sequence);
  for (size_t length : {size_t{1}, size_t{4}, size_t{9}}) {
    const std::span<const int32_t> tokens = std::span<const int32_t>(batch.inputs).first(length);
    const auto logits = small.model->NextTokenLogits(tokens);
    ASSERT_TRUE(logits.ok()) << logits.status();
    const Vector expected = small.Reference(config).Logits(tokens);
    const size_t vocab = static_cast<size_t>(config.vocab_size);
    ASSERT_EQ(logits->size(), vocab);
    for (size_t v = 0; v < vocab; ++v) {
      ASSERT_NEAR((*logits)[v], expected[(length - 1) * vocab + v], 2e-4) << v;
    }
  }
  EXPECT_FALSE(small.model->NextTokenLogits({}).ok());
  EXPECT_FALSE(small.model->NextTokenLogits(RandomBatch(config, 10).inputs).ok());
}

TEST(Model, BadBatchesAreRefused) {
  const hf::ModelConfig config = SmallConfig();
  const ModelOptions options = Options();
  SmallModel small(config, options);
  TestBatch batch = RandomBatch(config, options.sequence * options.micro_batch);
  const auto train = [&] {
    return small.model->Train({.inputs = batch.inputs, .targets = batch.targets}).status();
  };
  batch.targets[3] = static_cast<int32_t>(config.vocab_size);
  EXPECT_EQ(train().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(train().message().find("53 at position 3"), absl::string_view::npos) << train();
  batch.targets[3] = -1;
  EXPECT_EQ(train().code(), absl::StatusCode::kInvalidArgument);
  batch.targets[3] = 0;
  EXPECT_TRUE(train().ok());
  batch.inputs.pop_back();
  EXPECT_EQ(train().code(), absl::StatusCode::kInvalidArgument);
  batch.targets.pop_back();
  EXPECT_EQ(train().code(), absl::StatusCode::kInvalidArgument);
}

WeightSource OneBadWeight(const std::string& where, size_t index, float value) {
  return [=](const ParameterShape& parameter) -> absl::StatusOr<Reader> {
    std::vector<float> values(static_cast<size_t>(parameter.elements()), 0.5f);
    if (parameter.name == where) values[index] = value;
    return Reader([values](uint64_t offset, std::span<std::byte> out) {
      std::memcpy(out.data(), reinterpret_cast<const std::byte*>(values.data()) + offset,
                  out.size());
      return absl::OkStatus();
    });
  };
}

TEST(Model, WeightsThatAreNotFiniteAreNamed) {
  const std::string up = "model.layers.1.mlp.up_proj.weight";
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (Precision precision : {Precision::kFp32, Precision::kFp16Amp, Precision::kBf16}) {
    const SmallModel small(SmallConfig(), Options(precision), 2, OneBadWeight(up, 77, nan));
    EXPECT_EQ(small.status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(small.status.message().find(up + ": element 77"), absl::string_view::npos)
        << small.status;
  }
  const SmallModel fits(SmallConfig(), Options(), 2, OneBadWeight(up, 77, 1e5f));
  EXPECT_TRUE(fits.status.ok()) << fits.status;
  const SmallModel too_large(SmallConfig(), Options(Precision::kFp16Amp), 2,
                             OneBadWeight(up, 77, 1e5f));
  EXPECT_NE(too_large.status.message().find("does not fit fp16"), absl::string_view::npos)
      << too_large.status;
  const SmallModel fits_bf16(SmallConfig(), Options(Precision::kBf16), 2,
                             OneBadWeight(up, 77, 3.39e38f));
  EXPECT_TRUE(fits_bf16.status.ok()) << fits_bf16.status;
  const float largest = std::numeric_limits<float>::max();
  const SmallModel beyond(SmallConfig(), Options(Precision::kBf16), 2,
                          OneBadWeight(up, 77, largest));
  EXPECT_NE(beyond.status.message().find("does not fit bf16"), absl::string_view::npos)
      << beyond.status;
  const SmallModel kept(SmallConfig(), Options({"", Precision::kBf16, {"*up_proj*"}}), 2,
                        OneBadWeight(up, 77, largest));
  EXPECT_TRUE(kept.status.ok()) << kept.status;
}

TEST(Model, OptionsThatContradictAreRefused) {
  ModelOptions options = Options();
  options.gradient_dtype = DType::kF16;
  EXPECT_EQ(SmallModel(SmallConfig(), options).status.code(), absl::StatusCode::kInvalidArgument);
  for (const auto& [precision, type] :
       {std::pair(Precision::kBf16, DType::kF16), std::pair(Precision::kFp16Amp, DType::kBF16)}) {
    options = Options(precision);
    options.gradient_dtype = type;
    EXPECT_EQ(SmallModel(SmallConfig(), options).status.code(), absl::StatusCode::kInvalidArgument);
  }
  options = Options();
  options.sequence = 0;
  EXPECT_EQ(SmallModel(SmallConfig(), options).status.code(), absl::StatusCode::kInvalidArgument);
  options = Options();
  options.accumulate = 0;
  EXPECT_EQ(SmallModel(SmallConfig(), options).status.code(), absl::StatusCode::kInvalidArgument);
  options = Options(Precision::kBf16);
  options.state_format = StateFormat::kCompact;
  options.groups.fp32 = {"*norm*"};
  EXPECT_EQ(SmallModel(SmallConfig(), options).status.code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace spillway::trainer
