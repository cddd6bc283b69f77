// SPDX-License-Identifier: Apache-2.0
//
// Tests the operations and the bytes of published models of every type against formulas over their
// published sizes, which this file has again.

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "tools/hf/config.h"
#include "tools/hf/model_types.h"
#include "tools/trainer/flops.h"
#include "tools/trainer/model.h"

namespace spillway::trainer {
namespace {

struct PublishedModel {
  std::string type;
  int64_t parameters = 0;
  int64_t layers = 0;
  int64_t width = 0;
  int64_t query_width = 0;
  int64_t key_width = 0;
  int64_t mlp_width = 0;
  int64_t mlp_matrices = 0;  // 3 with a gate
  int64_t vocabulary = 0;
  int64_t window = 0;            // 0: none
  const char* first_block = "";  // a glob for its parameters

  int64_t block_weights() const {
    return width * (2 * query_width + 2 * key_width) + mlp_matrices * width * mlp_width;
  }
};

std::vector<PublishedModel> Models() {
  return {{"gpt2", 124'439'808, 12, 768, 768, 768, 3072, 2, 50257, 0, "*.h.0.*"},
          {"llama", 134'515'008, 30, 576, 576, 192, 1536, 3, 49152, 0, "*.layers.0.*"},
          {"mistral", 7'241'732'096, 32, 4096, 4096, 1024, 14336, 3, 32000, 4096, "*.layers.0.*"},
          {"qwen2", 494'032'768, 24, 896, 896, 128, 4864, 3, 151936, 0, "*.layers.0.*"},
          {"qwen3", 596'049'920, 28, 1024, 2048, 1024, 3072, 3, 151936, 0, "*.layers.0.*"}};
}

hf::ModelConfig ConfigOf(const PublishedModel& model) {
  std::ifstream file(SPILLWAY_CONFIG_CASES);
  const auto cases = nlohmann::json::parse(file);
  const auto& json = model.type == "llama" ? cases["good"] : cases["others"][model.type];
  return *hf::ParseModelConfig(json.dump(), "config.json");
}

TEST(ModelCosts, AreTestedForEveryType) {
  std::vector<std::string> tested, types;
  for (const PublishedModel& model : Models()) tested.push_back(model.type);
  for (const auto& [type, row] : hf::ModelTypes().items()) types.push_back(type);
  EXPECT_EQ(tested, types);
}

// Each token takes 2 operations a weight forward, 2 for the gradient of its input and 2 for that of
// the weight; and as many for each element of query times key, and of probability times value.
TEST(StepFlops, OfPublishedModels) {
  for (const PublishedModel& model : Models()) {
    for (const int64_t sequence : {512, 6000}) {
      SCOPED_TRACE(absl::StrCat(model.type, ", ", sequence));
      ModelOptions options;
      options.sequence = sequence;
      options.micro_batch = 3;
      options.accumulate = 5;
      const int64_t keys = model.window > 0 ? std::min(model.window, sequence) : sequence;
      const int64_t weights = model.layers * model.block_weights() + model.vocabulary * model.width;
      const int64_t scores = 2 * model.layers * model.query_width * keys;
      const auto tokens = static_cast<double>(15 * sequence);
      const double expected = tokens * 6 * static_cast<double>(weights + scores);
      const hf::ModelConfig config = ConfigOf(model);
      EXPECT_DOUBLE_EQ(StepFlops(config, options), expected);
      options.groups.frozen = {model.first_block};
      EXPECT_DOUBLE_EQ(StepFlops(config, options),
                       expected - tokens * 2 * static_cast<double>(model.block_weights()));
    }
  }
}

// Bytes of a value, of the residual, and of weight, master weight and both moments together.
struct Widths {
  Precision precision;
  int64_t value;
  int64_t residual;
  int64_t state;
};

// Values that each token saves in a block without checkpointing, beside the residual: the results
// of the attention's inputs and of its heads, and of all matrices of the MLP but the last.
int64_t SavedOf(const PublishedModel& model) {
  return 2 * model.query_width + 2 * model.key_width + (model.mlp_matrices - 1) * model.mlp_width;
}

TEST(ModelStateBytes, OfPublishedModels) {
  constexpr int64_t kSequence = 100, kMicroBatch = 2, kTokens = kSequence * kMicroBatch;
  for (const PublishedModel& model : Models()) {
    const hf::ModelConfig config = ConfigOf(model);
    for (const Widths& bytes :
         {Widths{Precision::kFp32, 4, 4, 12}, Widths{Precision::kFp16Amp, 2, 2, 14},
          Widths{Precision::kBf16, 2, 4, 14}}) {
      SCOPED_TRACE(absl::StrCat(model.type, ", ", std::string(Name(bytes.precision))));
      ModelOptions options;
      options.precision = bytes.precision;
      options.gradient_dtype = ElementType(bytes.precision);
      options.sequence = kSequence;
      options.micro_batch = kMicroBatch;
      const auto expect = [&](int64_t of_activations) {
        const StateBytes found = ModelStateBytes(config, options);
        EXPECT_EQ(found.committed, static_cast<uint64_t>(model.parameters * bytes.state));
        EXPECT_EQ(found.transient,
                  static_cast<uint64_t>(model.parameters * bytes.value + kTokens * of_activations));
      };
      const int64_t inputs = model.layers * model.width * bytes.residual;
      expect(inputs);
      options.checkpoint_activations = false;
      // Each block has a residual between its sublayers, too, and the logits are in fp32.
      const int64_t all =
          2 * inputs + model.layers * SavedOf(model) * bytes.value + model.vocabulary * 4;
      expect(all);
      // Each micro-batch has a gradient of its residual, in fp32; in layer order also all of the
      // others, and the input of the head.
      options.accumulate = 3;
      expect(all + 3 * model.width * 4);
      options.accumulation_order = AccumulationOrder::kLayer;
      expect(3 * (all + model.width * (4 + bytes.residual)));
    }
  }
}

}  // namespace
}  // namespace spillway::trainer
