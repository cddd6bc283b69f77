// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/plan/without_spillway.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <variant>

#include "absl/strings/str_format.h"
#include "src/plan/zero_bytes.h"

namespace spillway::command {
namespace {

using plan::Divided;
using plan::RankSetup;
using plan::Resting;

// QLoRA's 4-bit numbers: blocks of 64 have a scale of 8 bits, and 256 of these scales one of 32
// (arXiv:2305.14314, section 3).
constexpr double kQuantizedBytes = (4 + 8.0 / 64 + 32.0 / (64 * 256)) / 8;

double ElementsOf(const trainer::Description& model, size_t parameter) {
  if (parameter == trainer::kNone) return 0;
  double elements = 1;  // a product of integers would overflow for the largest models
  for (const int64_t size : model.parameters[parameter].shape)
    elements *= static_cast<double>(size);
  return elements;
}

double ElementsOf(const trainer::Description& model, const trainer::Norm& norm) {
  return ElementsOf(model, norm.scale) + ElementsOf(model, norm.shift);
}

double ElementsOf(const trainer::Description& model, const trainer::Block& block) {
  double elements = 0;
  for (const trainer::Sublayer& sublayer : block.sublayers) {
    elements += ElementsOf(model, sublayer.norm);
    if (const auto* attention = std::get_if<trainer::Attention>(&sublayer.branch)) {
      if (attention->query_norm) elements += ElementsOf(model, *attention->query_norm);
      if (attention->key_norm) elements += ElementsOf(model, *attention->key_norm);
    }
    trainer::ForEachLinear(sublayer, [&](const trainer::Linear& linear) {
      elements += ElementsOf(model, linear.weight) + ElementsOf(model, linear.bias);
    });
  }
  return elements;
}

// Parameters of the model, and of its parts.
struct Counts {
  double all = 0;
  double linears = 0;         // weights of the blocks' linears
  double largest_linear = 0;  // of these
  // The parts that fully_shard and ZeRO-3 gather one after the other: blocks, embedding, head.
  double largest_part = 0;
  double second_part = 0;
};

Counts Count(const trainer::Description& model) {
  Counts counts;
  for (size_t i = 0; i < model.parameters.size(); ++i) counts.all += ElementsOf(model, i);
  const auto add_part = [&](double elements) {
    if (elements > counts.largest_part) std::swap(elements, counts.largest_part);
    counts.second_part = std::max(counts.second_part, elements);
  };
  add_part(ElementsOf(model, model.tokens) + ElementsOf(model, model.positions));
  if (!model.is_tied()) add_part(ElementsOf(model, model.head.weight));
  for (const trainer::Block& block : model.blocks) {
    add_part(ElementsOf(model, block));
    for (const trainer::Sublayer& sublayer : block.sublayers) {
      trainer::ForEachLinear(sublayer, [&](const trainer::Linear& linear) {
        const double elements = ElementsOf(model, linear.weight);
        counts.linears += elements;
        counts.largest_linear = std::max(counts.largest_linear, elements);
      });
    }
  }
  return counts;
}

// Calls use(inputs, outputs) for each adapter of a block.
void ForEachAdapter(const trainer::Block& block, LoraLinears linears,
                    const std::function<void(int64_t, int64_t)>& use) {
  for (const trainer::Sublayer& sublayer : block.sublayers) {
    const auto* attention = std::get_if<trainer::Attention>(&sublayer.branch);
    if (attention == nullptr && linears != LoraLinears::kAll) continue;
    if (linears == LoraLinears::kQueryValue) {
      use(attention->inputs.front().inputs, attention->query_width());
      use(attention->inputs.front().inputs, attention->key_width());
      continue;
    }
    trainer::ForEachLinear(
        sublayer, [&](const trainer::Linear& linear) { use(linear.inputs, linear.outputs); });
  }
}

// Makes the ways one after the other.
class Ways {
 public:
  Ways(const trainer::Description& model, const WithoutOptions& options)
      : model_(model),
        options_(options),
        counts_(Count(model)),
        activations_({Activations(2), Activations(4)}) {}

  std::vector<WithoutSpillway> Make() {
    const double state_fp32 = plan::StateBytes(StateFormat::kF32, kMoments, 4);
    const double state_16bit = plan::StateBytes(StateFormat::kF32, kMoments, 2);
    const double state_8bit = plan::StateBytes(StateFormat::k8Bit, kMoments, 2);
    const double all = counts_.all;
    AddResident("fp32", "fp32", 4 * all, 4 * all, state_fp32 * all).activations =
        activations_.second.Peak(false);
    AddResident("amp", "AMP: 16 bits, with fp32 master weights", 2 * all, 2 * all,
                state_16bit * all)
        .activations = activations_.first.Peak(false);
    AddCheckpointed("checkpointing", "AMP, checkpointing", 2 * all, 2 * all, state_16bit * all);
    AddCheckpointed("adam_8bit", "AMP, checkpointing, 8-bit Adam", 2 * all, 2 * all,
                    state_8bit * all);
    if (!model_.blocks.empty()) AddLora();
    AddZero("zero_1", "ZeRO-1", Divided::kState);
    AddZero("zero_2", "ZeRO-2", Divided::kGradients);
    AddZero("zero_3", "ZeRO-3", Divided::kWeights);
    AddOffloads();
    return std::move(ways_);
  }

 private:
  static constexpr int kMoments = 2;  // Adam's

  AutogradBytes Activations(double element_bytes) const {
    return CountAutogradBytes(model_, {.sequence = options_.sequence,
                                       .windows = options_.windows,
                                       .element_bytes = element_bytes});
  }

  WithoutSpillway& AddResident(std::string_view key, std::string title, double weights,
                               double gradients, double state) {
    ways_.push_back({.key = key,
                     .title = std::move(title),
                     .weights = weights,
                     .gradients = gradients,
                     .state = state});
    return ways_.back();
  }
  WithoutSpillway& AddCheckpointed(std::string_view key, std::string title, double weights,
                                   double gradients, double state) {
    WithoutSpillway& way = AddResident(key, std::move(title), weights, gradients, state);
    way.checkpointing = true;
    way.activations = activations_.first.Peak(true);
    return way;
  }

  // Adapters are in fp32, as PEFT makes them, and so are their gradients and moments. An adapter
  // keeps what its first matrix gives.
  void AddLora() {
    const double adapters = LoraParameters(model_, options_.lora);
    const double tokens =
        static_cast<double>(options_.sequence) * static_cast<double>(options_.windows);
    double kept = 0;  // of one block, as with all that checkpointing computes again
    ForEachAdapter(model_.blocks.front(), options_.lora.linears, [&](int64_t, int64_t) {
      kept += 2 * tokens * static_cast<double>(options_.lora.rank);
    });
    const auto add = [&](std::string_view key, const char* name, double weights) {
      WithoutSpillway& way = AddCheckpointed(
          key, absl::StrFormat("%s of rank %d, checkpointing", name, options_.lora.rank),
          weights + 4 * adapters, 4 * adapters,
          plan::StateBytes(StateFormat::kF32, kMoments, 4) * adapters);
      way.activations += kept;
      return &way;
    };
    add("lora", "LoRA", 2 * counts_.all);
    // A linear's weights are there in 16 bits while they are used.
    add("qlora", "QLoRA", 2 * (counts_.all - counts_.linears) + kQuantizedBytes * counts_.linears)
        ->temporary = 2 * counts_.largest_linear;
  }

  void AddZero(std::string_view key, const char* name, Divided divided) {
    // Gradients leave for their ranks part by part.
    const double leaving = divided == Divided::kState ? 0 : 2 * counts_.largest_part;
    RankSetup setup{.parameters = counts_.all, .divided = divided, .ranks = options_.ranks};
    AddRank(key, absl::StrFormat("AMP, checkpointing, %s over %d GPUs", name, options_.ranks),
            setup, leaving);
  }

  void AddOffloads() {
    RankSetup setup{.parameters = counts_.all, .divided = Divided::kGradients};
    setup.gradients = setup.state = Resting::kMemory;
    AddRank("zero_offload",
            "AMP, checkpointing, ZeRO-Offload on one GPU: gradients and state in memory", setup,
            2 * counts_.largest_part);
    setup.divided = Divided::kWeights;
    setup.ranks = options_.ranks;
    setup.weights = Resting::kMemory;
    AddRank("zero_3_offload",
            absl::StrFormat("AMP, checkpointing, ZeRO-3 over %d GPUs, all of it in memory",
                            options_.ranks),
            setup, 2 * counts_.largest_part);
  }

  // Adds what plan::BytesOfRank says of each part: `setup` with one part of it after the other.
  void AddRank(std::string_view key, std::string title, const RankSetup& setup, double leaving) {
    const auto only = [&](double weights, double gradients, double state) {
      RankSetup part = setup;
      part.weight_bytes = weights;
      part.gradient_bytes = gradients;
      part.state_bytes = state;
      return plan::BytesOfRank(part);
    };
    const plan::RankBytes weights = only(setup.weight_bytes, 0, 0);
    const plan::RankBytes gradients = only(0, setup.gradient_bytes, 0);
    const plan::RankBytes state = only(0, 0, setup.state_bytes);
    WithoutSpillway& way =
        AddCheckpointed(key, std::move(title), weights.gpu, gradients.gpu, state.gpu);
    way.host = weights.memory + gradients.memory + state.memory;
    way.temporary = leaving;
    if (setup.divided == Divided::kWeights)  // the part that is computed, and the next one
      way.temporary += 2 * (counts_.largest_part + counts_.second_part);
  }

  const trainer::Description& model_;
  const WithoutOptions& options_;
  const Counts counts_;
  const std::pair<AutogradBytes, AutogradBytes> activations_;  // in 16 bits, in fp32
  std::vector<WithoutSpillway> ways_;
};

}  // namespace

double LoraParameters(const trainer::Description& model, const LoraOptions& options) {
  double sides = 0;
  for (const trainer::Block& block : model.blocks) {
    ForEachAdapter(block, options.linears, [&](int64_t inputs, int64_t outputs) {
      sides += static_cast<double>(inputs) + static_cast<double>(outputs);
    });
  }
  return static_cast<double>(options.rank) * sides;
}

std::vector<WithoutSpillway> WaysWithoutSpillway(const trainer::Description& model,
                                                 const WithoutOptions& options) {
  return Ways(model, options).Make();
}

}  // namespace spillway::command
