// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/activations.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "src/base/status_macros.h"
#include "tools/trainer/parameters.h"

namespace spillway::trainer {
namespace {

// Names of what an attention's inputs give, if they are three.
constexpr const char* kInputNames[] = {"query", "key", "value"};

// Lists the saved tensors: calls `add` for each, in order, which returns its id.
class SavedLister {
 public:
  using Add = std::function<TensorId(TensorSpec)>;

  SavedLister(const Description& model, const ModelOptions& options, Add add)
      : model_(model),
        options_(options),
        add_(std::move(add)),
        tiles_(TilesOf(model, options)),
        element_(ElementType(options.precision)),
        residual_(ResidualType(options.precision)) {}

  SavedTensors List() {
    SavedTensors saved;
    if (!options_.training) return saved;
    if (!options_.by_layer()) saved.passes.push_back(Pass(""));
    for (int64_t i = 0; options_.by_layer() && i < options_.accumulate; ++i)
      saved.passes.push_back(Pass(absl::StrCat("/", i)));
    for (int64_t i = 0; options_.accumulate > 1 && i < options_.accumulate; ++i) {
      saved.gradients.push_back(
          Tensor(absl::StrCat("activation/gradient/", i), model_.width, DType::kF32));
    }
    return saved;
  }

 private:
  TensorId Tensor(std::string name, int64_t width, DType type) {
    const int64_t tokens = options_.micro_batch * options_.sequence;
    // No tile has more bytes than a tile of the largest weights.
    const auto elements = static_cast<int64_t>(static_cast<uint64_t>(tiles_.values) *
                                               ElementBytes(element_) / ElementBytes(type));
    return add_({.name = std::move(name),
                 .dtype = type,
                 .shape = {tokens, width},
                 .role = Role::kActivation,
                 .tile_rows = TileRows(tokens, width, elements),
                 .transient = true});
  }

  // `of` is the end of the names of a micro-batch's own tensors.
  SavedPass Pass(const std::string& of) {
    SavedPass pass;
    for (size_t b = 0; b < model_.blocks.size(); ++b) {
      const auto add = [&](const std::string& name, int64_t width, DType type) {
        return Tensor(absl::StrCat("activation/", b, "/", name, of), width, type);
      };
      SavedBlock& block = pass.blocks.emplace_back();
      block.input = add("input", model_.width, residual_);
      const std::vector<Sublayer>& sublayers = model_.blocks[b].sublayers;
      for (size_t s = 0; !options_.checkpoint_activations && s < sublayers.size(); ++s) {
        // The sublayers after a block's first two have names of their own.
        const std::string end = s < 2 ? "" : absl::StrCat(s);
        SavedSublayer& saved = block.sublayers.emplace_back();
        if (const auto* attention = std::get_if<Attention>(&sublayers[s].branch)) {
          const bool is_fused = attention->inputs.size() == 1;
          for (size_t i = 0; i < attention->inputs.size(); ++i) {
            saved.inputs.push_back(add((is_fused ? "fused" : kInputNames[i]) + end,
                                       attention->inputs[i].outputs, element_));
          }
          saved.attention = add("attention" + end, attention->query_width(), element_);
        } else {
          const Mlp& mlp = std::get<Mlp>(sublayers[s].branch);
          if (mlp.gate.has_value())
            saved.inputs.push_back(add("gate" + end, mlp.width(), element_));
          saved.inputs.push_back(add("up" + end, mlp.width(), element_));
        }
        if (s + 1 < sublayers.size()) saved.residual = add("middle" + end, model_.width, residual_);
      }
    }
    if (options_.by_layer())
      pass.head_input = Tensor("activation/head/input" + of, model_.width, residual_);
    const int64_t rows = WeightTileRows(model_.vocabulary, model_.width, tiles_);
    for (int64_t first = 0; !options_.checkpoint_activations && first < model_.vocabulary;
         first += rows) {
      pass.logits.push_back(Tensor(absl::StrCat("activation/logits/", first / rows, of),
                                   std::min(rows, model_.vocabulary - first), DType::kF32));
    }
    return pass;
  }

  const Description& model_;
  const ModelOptions& options_;
  const Add add_;
  const TileSizes tiles_;
  const DType element_;
  const DType residual_;
};

}  // namespace

DType ResidualType(Precision precision) {
  return precision == Precision::kBf16 ? DType::kF32 : ElementType(precision);
}

std::vector<TensorSpec> ActivationSpecs(const Description& model, const ModelOptions& options) {
  std::vector<TensorSpec> specs;
  const auto add = [&](TensorSpec spec) {
    specs.push_back(std::move(spec));
    return TensorId();
  };
  SavedLister(model, options, add).List();
  return specs;
}

absl::StatusOr<SavedTensors> RegisterActivations(Engine* engine, const Description& model,
                                                 const ModelOptions& options) {
  absl::Status failure;
  const auto add = [&](const TensorSpec& spec) {
    if (!failure.ok()) return TensorId();
    const absl::StatusOr<TensorId> id = engine->Register(spec);
    failure = id.status();
    return id.value_or(TensorId());
  };
  SavedTensors saved = SavedLister(model, options, add).List();
  SPILLWAY_RETURN_IF_ERROR(failure);
  return saved;
}

}  // namespace spillway::trainer
