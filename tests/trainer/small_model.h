// SPDX-License-Identifier: Apache-2.0
//
// Small models over the heap engine for tests: configurations, weights derived from a
// parameter's name, and batches of pseudo-random tokens.

#ifndef SPILLWAY_TESTS_TRAINER_SMALL_MODEL_H_
#define SPILLWAY_TESTS_TRAINER_SMALL_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "spillway/thread_pool.h"
#include "tests/heap_engine.h"
#include "tests/trainer/reference_model.h"
#include "tools/hf/config.h"
#include "tools/hf/model_types.h"
#include "tools/trainer/model.h"

namespace spillway::trainer {

inline hf::ModelConfig SmallConfig() {
  hf::ModelConfig config;
  config.vocab_size = 53;
  config.hidden_size = 24;
  config.intermediate_size = 40;
  config.num_layers = 2;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 6;
  config.rms_norm_eps = 1e-5;
  config.rope_theta = 10000.0;
  config.tie_word_embeddings = true;
  config.max_position_embeddings = 512;
  return config;
}

// The same sizes for a row of the table of model types. If it has windows, the first layer's is
// short.
inline hf::ModelConfig SmallConfigOf(const std::string& type) {
  const auto& row = hf::ModelTypeOf(type);
  hf::ModelConfig config = SmallConfig();
  config.model_type = type;
  for (const auto& [name, kind] : row.at("activation").at("kinds").items())
    config.activation = kind.get<std::string>();
  if (!row.at("keys").contains("kv_heads")) config.num_kv_heads = config.num_heads;
  if (row.contains("window")) config.windows = {5, 0};
  return config;
}

// Returns weights large enough that the predictions are far from uniform and the gradients are well
// above rounding errors.
inline std::vector<float> WeightsOf(const std::string& name, size_t elements) {
  std::mt19937_64 random(std::hash<std::string>{}(name));
  std::normal_distribution<float> normal;
  const bool norm = name.find("norm") != std::string::npos;
  std::vector<float> values(elements);
  for (float& value : values) value = norm ? 1.0f + 0.2f * normal(random) : 0.25f * normal(random);
  return values;
}

inline WeightSource TestWeights() {
  return [](const ParameterShape& parameter) -> absl::StatusOr<Reader> {
    const auto elements = static_cast<size_t>(parameter.elements());
    return Reader(
        [values = WeightsOf(parameter.name, elements)](uint64_t offset, std::span<std::byte> out) {
          std::memcpy(out.data(), reinterpret_cast<const std::byte*>(values.data()) + offset,
                      out.size());
          return absl::OkStatus();
        });
  };
}

struct TestBatch {
  std::vector<int32_t> inputs;
  std::vector<int32_t> targets;
};

inline TestBatch RandomBatch(const hf::ModelConfig& config, int64_t tokens, uint64_t seed = 7) {
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<int32_t> token(0, static_cast<int32_t>(config.vocab_size) - 1);
  TestBatch batch;
  for (int64_t i = 0; i < tokens; ++i) {
    batch.inputs.push_back(token(random));
    batch.targets.push_back(token(random));
  }
  return batch;
}

// A model with its engine and its thread pool.
struct SmallModel {
  HeapEngine engine;
  ThreadPool pool;
  std::unique_ptr<Model> model;

  SmallModel(const hf::ModelConfig& config, const ModelOptions& options, int threads = 2,
             const WeightSource& source = TestWeights())
      : pool(threads) {
    auto created = Model::Create(&engine, &pool, config, options, source);
    status = created.status();
    if (created.ok()) model = *std::move(created);
  }

  // Returns all gradients as fp32 values, by parameter name.
  std::map<std::string, std::vector<float>> Gradients() {
    std::map<std::string, std::vector<float>> gradients;
    for (const Parameter& parameter : model->parameters()) {
      const auto values = engine.Values<float>(parameter.tensors.gradient);
      gradients[parameter.name] = {values.begin(), values.end()};
    }
    return gradients;
  }

  ReferenceModel Reference(const hf::ModelConfig& config) {
    std::map<std::string, Vector> weights;
    for (const Parameter& parameter : model->parameters()) {
      const auto values = engine.Values<float>(parameter.tensors.weight);
      weights[parameter.name] = {values.begin(), values.end()};
    }
    return ReferenceModel(config, std::move(weights));
  }

  absl::Status status;
};

}  // namespace spillway::trainer

#endif  // SPILLWAY_TESTS_TRAINER_SMALL_MODEL_H_
