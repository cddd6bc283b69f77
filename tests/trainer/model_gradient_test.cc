// SPDX-License-Identifier: Apache-2.0
//
// Tests the model's loss and gradients against a double-precision reference and its finite
// differences, over configurations of odd sizes.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "tests/trainer/small_model.h"

namespace spillway::trainer {
namespace {

struct Case {
  std::string name;
  hf::ModelConfig config;
  ModelOptions options;
};

std::vector<Case> Cases() {
  std::vector<Case> cases;
  const auto add = [&](const std::string& name, auto change) {
    Case c{.name = name, .config = SmallConfig(), .options = {}};
    c.options.sequence = 11;
    c.options.micro_batch = 2;
    change(c);
    cases.push_back(c);
  };
  add("Tied", [](Case&) {});
  add("Untied", [](Case& c) { c.config.tie_word_embeddings = false; });
  add("SavedActivations", [](Case& c) { c.options.checkpoint_activations = false; });
  add("OneKeyHead", [](Case& c) { c.config.num_kv_heads = 1; });
  add("AsManyKeyHeads", [](Case& c) { c.config.num_kv_heads = 4; });
  add("SevenHeadsOneKeyHead", [](Case& c) {
    c.config.num_heads = 7;
    c.config.num_kv_heads = 1;
    c.config.head_dim = 2;
  });
  add("ExplicitHeadDim", [](Case& c) { c.config.head_dim = 10; });
  add("OddSizes", [](Case& c) {
    c.config.vocab_size = 101;
    c.config.hidden_size = 17;
    c.config.intermediate_size = 23;
    c.config.num_layers = 3;
    c.config.num_heads = 3;
    c.config.num_kv_heads = 3;
    c.config.head_dim = 4;
    c.config.tie_word_embeddings = false;
    c.options.micro_batch = 3;
    c.options.sequence = 7;
  });
  add("LongerThanAQueryBlock", [](Case& c) {
    c.config.num_layers = 1;
    c.config.hidden_size = 8;
    c.config.intermediate_size = 8;
    c.options.sequence = 150;
    c.options.micro_batch = 1;
  });
  add("SeveralTiles", [](Case& c) {
    c.config.vocab_size = 2100;
    c.config.hidden_size = 33;
    c.config.intermediate_size = 2003;
    c.config.num_layers = 1;
    c.options.sequence = 5;
  });
  add("TilesOfTheOptions", [](Case& c) { c.options.tiles = {7 * 24, 48}; });
  add("TilesOfTheOptionsSaved", [](Case& c) {
    c.options.tiles = {100, 30};
    c.options.checkpoint_activations = false;
  });
  add("SeveralTilesUntiedSaved", [](Case& c) {
    c.config.vocab_size = 2100;
    c.config.hidden_size = 33;
    c.config.intermediate_size = 2003;
    c.config.num_layers = 1;
    c.config.tie_word_embeddings = false;
    c.options.sequence = 5;
    c.options.checkpoint_activations = false;
  });
  return cases;
}

class ModelGradient : public testing::TestWithParam<Case> {};

TEST_P(ModelGradient, AgreesWithFiniteDifferencesOfTheReference) {
  const auto& [name, config, options] = GetParam();
  SmallModel small(config, options);
  ASSERT_TRUE(small.status.ok()) << small.status;
  const int64_t tokens = options.micro_batch * options.sequence;
  const size_t length = static_cast<size_t>(options.sequence);
  const TestBatch batch = RandomBatch(config, tokens);
  constexpr double kScale = 3.0;
  const auto loss = small.model->Train(
      {.inputs = batch.inputs, .targets = batch.targets, .gradient_scale = kScale});
  ASSERT_TRUE(loss.ok()) << loss.status();

  ReferenceModel reference = small.Reference(config);
  EXPECT_NEAR(*loss, reference.Loss(batch.inputs, batch.targets, length), 2e-6 * *loss);

  double sum_of_squares = 0;
  for (const auto& [parameter, gradient] : small.Gradients()) {
    double largest = 0;
    for (float g : gradient) {
      largest = std::max(largest, std::fabs(static_cast<double>(g)));
      sum_of_squares += static_cast<double>(g) * g;
    }
    ASSERT_GT(largest, 0) << parameter;
    // Checks some elements of each parameter, including the first and the last.
    const size_t steps = length > 100 || config.vocab_size > 1000 ? 5 : 17;
    for (size_t i = 0; i <= steps; ++i) {
      const size_t at = (gradient.size() - 1) * i / steps;
      double& w = reference.weight(parameter)[at];
      const double value = w;
      constexpr double kDelta = 1e-5;
      w = value + kDelta;
      const double above = reference.Loss(batch.inputs, batch.targets, length);
      w = value - kDelta;
      const double below = reference.Loss(batch.inputs, batch.targets, length);
      w = value;
      EXPECT_NEAR(gradient[at], kScale * (above - below) / (2 * kDelta), 2e-5 * largest)
          << parameter << "[" << at << "]";
    }
  }
  EXPECT_NEAR(small.model->gradients().sum_of_squares, sum_of_squares, 1e-9 * sum_of_squares);
  EXPECT_TRUE(small.model->gradients().finite);
  EXPECT_EQ(small.engine.most_held(), 1);
}

INSTANTIATE_TEST_SUITE_P(Configurations, ModelGradient, testing::ValuesIn(Cases()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace spillway::trainer
