// SPDX-License-Identifier: Apache-2.0
//
// Follows tools/trainer/model.cc, block.cc, head.cc and src/optim/update_pass.cc lease by lease. A
// test compares the trace with what a run moves.

#include "tools/spillway/train/step_trace.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "spillway/types.h"
#include "src/optim/rule_passes.h"
#include "tools/trainer/activations.h"
#include "tools/trainer/parameters.h"

namespace spillway::command {
namespace {

using plan::TileIndex;
using trainer::After;
using Tiles = std::vector<TileIndex>;  // of a tensor

// The activations of a block that are saved beside its input if there is no checkpointing.
constexpr std::array<const char*, 7> kSaved = {"query",  "key",  "value", "attention",
                                               "middle", "gate", "up"};

class StepWriter {
 public:
  StepWriter(const hf::ModelConfig& config, const trainer::ModelOptions& options)
      : config_(config), options_(options) {
    const int64_t tile_elements = trainer::TileElements(config);
    for (const trainer::ParameterShape& shape : trainer::ListParameters(config)) {
      OneParameter parameter;
      for (const TensorSpec& spec : trainer::ParameterTensorSpecs(shape, options, tile_elements)) {
        const Tiles tiles = Add(spec);
        if (spec.role == Role::kParameter) parameter.weight = tiles;
        if (spec.role == Role::kGradient) parameter.gradient = tiles;
        if (spec.role == Role::kMasterWeight || spec.role == Role::kMoment)
          parameter.state.push_back(tiles);
        if (spec.role == Role::kMasterWeight) parameter.has_master = true;
      }
      parameter.passes = optim::PassesOf(options.rule, options.state_format, shape.shape);
      parameters_.push_back(parameter);
    }
    for (const TensorSpec& spec : trainer::ActivationSpecs(config, options))
      activations_[spec.name] = Add(spec);
  }

  plan::Trace Write() {
    recorder_.Begin(0);
    const int64_t count = options_.by_layer() ? options_.accumulate : 1;
    for (int64_t first = 0; first < options_.accumulate; first += count) {
      together_.clear();
      for (int64_t i = first; i < first + count; ++i) together_.push_back(i);
      LookupForward();
      for (int64_t layer = 0; layer < config_.num_layers; ++layer) BlocksForward(layer);
      Head();
      for (int64_t layer = config_.num_layers; layer-- > 0;) BlocksBackward(layer);
    }
    LookupBackward();
    for (const OneParameter& parameter : parameters_) Update(parameter);
    return recorder_.End();
  }

 private:
  struct OneParameter {
    Tiles weight, gradient;
    std::vector<Tiles> state;  // as StateSpecs lists it
    std::vector<optim::Pass> passes;
    bool has_master = false;
  };

  Tiles Add(const TensorSpec& spec) {
    Tiles tiles;
    for (uint64_t tile = 0; tile < spec.num_tiles(); ++tile) {
      tiles.push_back(recorder_.AddTile({.size_bytes = spec.tile_bytes(tile),
                                         .role = spec.role,
                                         .transient = spec.transient,
                                         .stored = !spec.transient}));
    }
    return tiles;
  }

  // --- What a lease, or a row of them, is for ---

  void Lease(TileIndex tile, Access access) {
    recorder_.Acquire(tile, Tier::kDevice, access, 0, 0);
    recorder_.Release(tile, Tier::kDevice, access, 0);
  }
  void Save(const std::string& activation) {
    for (const TileIndex tile : activations_.at(activation)) Lease(tile, Access::kDiscard);
  }
  void Load(const std::string& activation, After after) {
    for (const TileIndex tile : activations_.at(activation)) {
      Lease(tile, Access::kRead);
      if (after == After::kForget) recorder_.Discard(tile, 0);
    }
  }
  std::string OfLayer(int64_t layer, const char* kind, int64_t batch) const {
    const bool is_head = layer == config_.num_layers;
    return Name(is_head ? "head" : absl::StrCat(layer), kind, batch);
  }
  std::string Logits(size_t tile, int64_t batch) const {
    return Name("logits", absl::StrCat(tile), batch);
  }
  std::string Name(const std::string& place, const std::string& kind, int64_t batch) const {
    return absl::StrCat("activation/", place, "/", kind,
                        options_.by_layer() ? absl::StrCat("/", batch) : "");
  }
  std::string Gradient(int64_t batch) const { return absl::StrCat("activation/gradient/", batch); }
  bool several() const { return together_.size() > 1; }

  void Use(size_t parameter) {
    for (const TileIndex tile : parameters_[parameter].weight) Lease(tile, Access::kRead);
  }
  void AddTo(TileIndex gradient, int64_t batch, bool is_first_use = true) {
    Lease(gradient, batch == 0 && is_first_use ? Access::kDiscard : Access::kReadWrite);
  }
  void Backward(size_t parameter, int64_t batch) {
    Use(parameter);
    for (const TileIndex tile : parameters_[parameter].gradient) AddTo(tile, batch);
  }

  // --- The parts of a step ---

  void LookupForward() {
    const Tiles& weight = parameters_[trainer::kEmbeddingIndex].weight;
    for (size_t tile = 0; tile < weight.size(); ++tile) {
      for (const int64_t batch : together_) {
        if (several() && tile > 0) Load(OfLayer(0, "input", batch), After::kForget);
        Lease(weight[tile], Access::kRead);
        if (several()) Save(OfLayer(0, "input", batch));
      }
    }
  }

  void AttentionHalf(const trainer::LayerParameters& of) {
    for (const size_t p : {of.input_norm, of.query, of.key, of.value, of.output}) Use(p);
  }
  void GateAndUp(const trainer::LayerParameters& of) {
    for (const size_t p : {of.middle_norm, of.gate, of.up}) Use(p);
  }

  void BlocksForward(int64_t layer) {
    const trainer::LayerParameters of = trainer::LayerParameterIndices(layer);
    for (const int64_t batch : together_) {
      const std::string input = OfLayer(layer, "input", batch);
      several() ? Load(input, After::kKeep) : Save(input);
      AttentionHalf(of);
      GateAndUp(of);
      for (const char* kind : kSaved) {
        if (!options_.checkpoint_activations) Save(OfLayer(layer, kind, batch));
      }
      Use(of.down);
      if (several()) Save(OfLayer(layer + 1, "input", batch));
    }
  }

  void Head() {
    const size_t norm = trainer::FinalNormIndex(config_);
    const OneParameter& head = parameters_[trainer::HeadIndex(config_)];
    const auto fetch = [&](int64_t batch, After after) {
      if (!several()) return;
      Load(OfLayer(config_.num_layers, "input", batch), after);
      Use(norm);
    };
    if (!several()) Use(norm);
    for (size_t tile = 0; tile < head.weight.size(); ++tile) {
      for (const int64_t batch : together_) {
        fetch(batch, After::kKeep);
        Lease(head.weight[tile], Access::kRead);
        if (!options_.checkpoint_activations) Save(Logits(tile, batch));
      }
    }
    for (size_t tile = 0; tile < head.weight.size(); ++tile) {
      for (const int64_t batch : together_) {
        fetch(batch, After::kKeep);
        if (several() && tile > 0) Load(Gradient(batch), After::kForget);
        options_.checkpoint_activations ? Lease(head.weight[tile], Access::kRead)
                                        : Load(Logits(tile, batch), After::kForget);
        Lease(head.weight[tile], Access::kRead);
        if (!head.gradient.empty()) AddTo(head.gradient[tile], batch);
        if (several()) Save(Gradient(batch));
      }
    }
    for (const int64_t batch : together_) {
      fetch(batch, After::kForget);
      if (several()) Load(Gradient(batch), After::kForget);
      Backward(norm, batch);
      if (several()) Save(Gradient(batch));
    }
  }

  void BlocksBackward(int64_t layer) {
    const trainer::LayerParameters of = trainer::LayerParameterIndices(layer);
    for (const int64_t batch : together_) {
      if (several()) Load(Gradient(batch), After::kForget);
      Load(OfLayer(layer, "input", batch), After::kForget);
      if (options_.checkpoint_activations) {
        AttentionHalf(of);
        GateAndUp(of);
      } else {
        for (const char* kind : kSaved) Load(OfLayer(layer, kind, batch), After::kForget);
        Use(of.middle_norm);
      }
      for (const size_t p : {of.down, of.up, of.gate, of.middle_norm, of.output})
        Backward(p, batch);
      Use(of.input_norm);
      for (const size_t p : {of.value, of.key, of.query, of.input_norm}) Backward(p, batch);
      const bool is_used_again =
          layer > 0 ? several() : options_.accumulate > 1 && TrainsEmbedding();
      if (is_used_again) Save(Gradient(batch));
    }
  }

  bool TrainsEmbedding() const { return !parameters_[trainer::kEmbeddingIndex].gradient.empty(); }

  void LookupBackward() {
    const Tiles& gradient = parameters_[trainer::kEmbeddingIndex].gradient;
    for (size_t tile = 0; tile < gradient.size(); ++tile) {
      const bool is_last = tile + 1 == gradient.size();
      for (int64_t batch = 0; batch < options_.accumulate; ++batch) {
        if (options_.accumulate > 1) Load(Gradient(batch), is_last ? After::kForget : After::kKeep);
        AddTo(gradient[tile], batch, /*is_first_use=*/!config_.tie_word_embeddings);
      }
    }
  }

  // Leases the operands of an update in pinned memory, in each pass of the rule. Their order is:
  // the gradient, the weight if it is its own master weight, the state, and the weight if it has a
  // separate master weight; such a weight is written whole. All operands have the same tiles,
  // except that some state is a single tile, which is held from the first tile to the last.
  void Update(const OneParameter& parameter) {
    using optim::OperandKind;
    std::vector<std::pair<OperandKind, const Tiles*>> operands = {
        {OperandKind::kGradient, &parameter.gradient}};
    if (!parameter.has_master) operands.emplace_back(OperandKind::kMaster, &parameter.weight);
    for (size_t i = 0; i < parameter.state.size(); ++i) {
      const bool is_master = parameter.has_master && i == 0;
      operands.emplace_back(is_master ? OperandKind::kMaster : OperandKind::kMoment,
                            &parameter.state[i]);
    }
    if (parameter.has_master) operands.emplace_back(OperandKind::kWeight, &parameter.weight);
    for (const optim::Pass& pass : parameter.passes) {
      const bool is_last_pass = &pass == &parameter.passes.back();
      const size_t last = parameter.gradient.size();
      for (size_t tile = 0; tile < last; ++tile) {
        for (const auto& [kind, tiles] : operands) {
          const auto access = pass.AccessTo(kind);
          if (!access || tile >= tiles->size()) continue;
          recorder_.Acquire((*tiles)[tile], Tier::kPinned, *access, 0, 0);
        }
        for (const auto& [kind, tiles] : operands) {
          const auto access = pass.AccessTo(kind);
          const bool is_held_on = tiles->size() < last && tile + 1 < last;
          if (!access || is_held_on) continue;
          const TileIndex ended = tiles->size() < last ? tiles->back() : (*tiles)[tile];
          recorder_.Release(ended, Tier::kPinned, *access, 0);
          if (kind == OperandKind::kGradient && is_last_pass) recorder_.Discard(ended, 0);
        }
      }
    }
  }

  const hf::ModelConfig& config_;
  const trainer::ModelOptions& options_;
  plan::TraceRecorder recorder_;
  std::vector<OneParameter> parameters_;
  std::map<std::string, Tiles> activations_;
  std::vector<int64_t> together_;  // micro-batches that pass through the layers together
};

}  // namespace

plan::Trace TraceOfStep(const hf::ModelConfig& config, const trainer::ModelOptions& options) {
  return StepWriter(config, options).Write();
}

}  // namespace spillway::command
