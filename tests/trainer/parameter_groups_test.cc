// SPDX-License-Identifier: Apache-2.0
//
// Tests patterns over parameter names, and the effects of freezing some parameters.

#include "tools/trainer/parameter_groups.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "tests/trainer/small_model.h"
#include "tools/trainer/flops.h"
#include "tools/trainer/parameters.h"

namespace spillway::trainer {
namespace {

TEST(MatchesGlob, AsAShellDoes) {
  const std::string name = "model.layers.10.mlp.up_proj.weight";
  for (const char* pattern :
       {"*", "model.*", "*mlp*", "model.layers.1?.mlp.up_proj.weight", "*[12]0.mlp*",
        "*.up_pro[!k].*", "model.layers.10.mlp.up_proj.weight"})
    EXPECT_TRUE(MatchesGlob(pattern, name)) << pattern;
  for (const char* pattern : {"", "mlp", "model", "*MLP*", "model.layers.?.mlp.*", "*[3-9]0.mlp*",
                              "[", "*\\*", "model.layers.10.mlp.up_proj.weight "})
    EXPECT_FALSE(MatchesGlob(pattern, name)) << pattern;
}

TEST(ParameterGroups, SayWhatIsOtherwise) {
  const ParameterGroups groups = {.frozen = {"a*", "b"},
                                  .no_decay = {"*norm*"},
                                  .rate_factors = {{"*", 0.5}, {"c*", 3}, {"cc", 0}}};
  EXPECT_TRUE(groups.IsFrozen("a.weight"));
  EXPECT_TRUE(groups.IsFrozen("b"));
  EXPECT_FALSE(groups.IsFrozen("bb"));
  EXPECT_FALSE(groups.IsDecayed("norm.weight"));
  EXPECT_TRUE(groups.IsDecayed("weight"));
  EXPECT_EQ(groups.RateFactorOf("x"), 0.5);
  EXPECT_EQ(groups.RateFactorOf("c"), 3) << "the last that matches";
  EXPECT_EQ(groups.RateFactorOf("cc"), 0);
  EXPECT_EQ(ParameterGroups().RateFactorOf("x"), 1);
}

TEST(FirstWithoutMatch, NamesThePattern) {
  EXPECT_EQ(FirstWithoutMatch({"a", "b*"}, {"bb", "a"}), "");
  EXPECT_EQ(FirstWithoutMatch({"a", "c*", "d"}, {"bb", "a"}), "c*");
  EXPECT_EQ(FirstWithoutMatch({}, {"a"}), "");
}

ModelOptions Options(const std::vector<std::string>& frozen) {
  ModelOptions options;
  options.sequence = 8;
  options.accumulate = 2;
  options.groups.frozen = frozen;
  return options;
}

// Returns the gradients of the trained parameters after a step of two micro-batches.
std::map<std::string, std::vector<float>> GradientsOf(const hf::ModelConfig& config,
                                                      const ModelOptions& options) {
  SmallModel small(config, options);
  EXPECT_TRUE(small.status.ok()) << small.status;
  const TestBatch batch = RandomBatch(config, 16);
  const auto loss = small.model->Train({.inputs = batch.inputs, .targets = batch.targets});
  EXPECT_TRUE(loss.ok()) << loss.status();
  std::map<std::string, std::vector<float>> gradients;
  for (const Parameter& parameter : small.model->parameters()) {
    if (!parameter.tensors.is_trained()) continue;
    const auto values = small.engine.Values<float>(parameter.tensors.gradient);
    gradients[parameter.name] = {values.begin(), values.end()};
  }
  EXPECT_EQ(small.engine.Stats().nvme.written_bytes, 0U);
  return gradients;
}

TEST(Freezing, ChangesNoOtherGradient) {
  for (const bool tied : {true, false}) {
    for (const auto order : {AccumulationOrder::kMicroBatch, AccumulationOrder::kLayer}) {
      for (const char* pattern : {"*embed*", "*layers.0*", "*norm*", "*proj*"}) {
        hf::ModelConfig config = SmallConfig();
        config.tie_word_embeddings = tied;
        ModelOptions all = Options({});
        ModelOptions some = Options({pattern});
        all.accumulation_order = some.accumulation_order = order;
        auto expected = GradientsOf(config, all);
        const auto gradients = GradientsOf(config, some);
        std::erase_if(expected, [&](const auto& each) { return MatchesGlob(pattern, each.first); });
        EXPECT_EQ(gradients, expected) << pattern << (tied ? ", tied" : "");
      }
    }
  }
}

TEST(Freezing, LeavesTheWeightAlone) {
  ModelOptions options = Options({"*embed*"});
  options.precision = Precision::kFp16Amp;
  const auto specs =
      ParameterTensorSpecs(ListParameters(SmallConfig())[0], options, {1 << 16, 1 << 16});
  ASSERT_EQ(specs.size(), 1U);
  EXPECT_EQ(specs[0].role, Role::kParameter);
  EXPECT_EQ(specs[0].dtype, DType::kF16);
  const StateBytes frozen = ModelStateBytes(SmallConfig(), options);
  options.groups = {};
  const StateBytes all = ModelStateBytes(SmallConfig(), options);
  EXPECT_EQ(all.committed - frozen.committed, 53U * 24 * 12);
}

TEST(Freezing, CountsNoGradientsOfFrozenWeights) {
  hf::ModelConfig config = SmallConfig();
  const double all = StepFlops(config, Options({}));
  EXPECT_EQ(all - StepFlops(config, Options({"*embed*"})), 2.0 * 16 * 53 * 24);
  config.tie_word_embeddings = false;
  EXPECT_EQ(StepFlops(config, Options({"*embed*"})), StepFlops(config, Options({})))
      << "it is looked up and multiplies nothing";
}

}  // namespace
}  // namespace spillway::trainer
