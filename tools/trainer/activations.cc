// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/activations.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "spillway/engine.h"
#include "src/base/status_macros.h"
#include "tools/trainer/kernels/convert.h"
#include "tools/trainer/parameters.h"

namespace spillway::trainer {
namespace {

struct SavedKind {
  const char* name;
  int64_t width;
  DType type;
};

std::vector<SavedKind> KindsOfBlock(const hf::ModelConfig& config, const ModelOptions& options) {
  const int64_t query_width = config.num_heads * config.head_dim;
  const int64_t key_width = config.num_kv_heads * config.head_dim;
  const DType type = ElementType(options.precision);
  const DType residual = ResidualType(options.precision);
  if (options.checkpoint_activations) return {{"input", config.hidden_size, residual}};
  return {{"input", config.hidden_size, residual},
          {"query", query_width, type},
          {"key", key_width, type},
          {"value", key_width, type},
          {"attention", query_width, type},
          {"middle", config.hidden_size, residual},
          {"gate", config.intermediate_size, type},
          {"up", config.intermediate_size, type}};
}

// The minimum number of elements that a thread copies or converts.
constexpr int64_t kCopyGrain = 4096;

}  // namespace

DType ResidualType(Precision precision) {
  return precision == Precision::kBf16 ? DType::kF32 : ElementType(precision);
}

std::vector<TensorSpec> ActivationSpecs(const hf::ModelConfig& config,
                                        const ModelOptions& options) {
  std::vector<TensorSpec> specs;
  if (!options.training) return specs;
  const int64_t tokens = options.micro_batch * options.sequence;
  const int64_t tile_elements = TileElements(config);
  const DType dtype = ElementType(options.precision);
  const auto add = [&](std::string name, int64_t width, DType of) {
    // No tile has more bytes than a tile of the largest weights.
    const auto elements = static_cast<int64_t>(static_cast<uint64_t>(tile_elements) *
                                               ElementBytes(dtype) / ElementBytes(of));
    specs.push_back({.name = std::move(name),
                     .dtype = of,
                     .shape = {tokens, width},
                     .role = Role::kActivation,
                     .tile_rows = TileRows(tokens, width, elements),
                     .transient = true});
  };
  const auto add_saved = [&](const std::string& of) {
    for (int64_t layer = 0; layer < config.num_layers; ++layer) {
      for (const SavedKind& kind : KindsOfBlock(config, options))
        add(absl::StrCat("activation/", layer, "/", kind.name, of), kind.width, kind.type);
    }
    if (options.by_layer()) {
      add(absl::StrCat("activation/head/input", of), config.hidden_size,
          ResidualType(options.precision));
    }
    if (options.checkpoint_activations) return;
    const int64_t rows = TileRows(config.vocab_size, config.hidden_size, tile_elements);
    for (int64_t first = 0; first < config.vocab_size; first += rows) {
      add(absl::StrCat("activation/logits/", first / rows, of),
          std::min(rows, config.vocab_size - first), DType::kF32);
    }
  };
  if (!options.by_layer()) add_saved("");
  for (int64_t i = 0; options.by_layer() && i < options.accumulate; ++i)
    add_saved(absl::StrCat("/", i));
  for (int64_t i = 0; options.accumulate > 1 && i < options.accumulate; ++i)
    add(absl::StrCat("activation/gradient/", i), config.hidden_size, DType::kF32);
  return specs;
}

absl::StatusOr<Activations> Activations::Register(Engine* engine, ThreadPool* pool,
                                                  const hf::ModelConfig& config,
                                                  const ModelOptions& options) {
  std::vector<TensorId> ids;
  for (const TensorSpec& spec : ActivationSpecs(config, options)) {
    SPILLWAY_ASSIGN_OR_RETURN(ids.emplace_back(), engine->Register(spec));
  }
  Activations activations(engine, pool);
  activations.kinds_ = options.checkpoint_activations ? 1 : kNumActivations;
  activations.saved_.resize(options.by_layer() ? static_cast<size_t>(options.accumulate) : 1);
  const size_t of_layers = activations.kinds_ * static_cast<size_t>(config.num_layers) +
                           static_cast<size_t>(options.by_layer());
  const size_t of_gradients =
      options.accumulate > 1 ? static_cast<size_t>(options.accumulate) : size_t{0};
  const size_t of_saved = (ids.size() - of_gradients) / activations.saved_.size();
  std::span<const TensorId> rest = ids;
  for (Saved& saved : activations.saved_) {
    saved.layers.assign(rest.begin(), rest.begin() + static_cast<ptrdiff_t>(of_layers));
    saved.logits.assign(rest.begin() + static_cast<ptrdiff_t>(of_layers),
                        rest.begin() + static_cast<ptrdiff_t>(of_saved));
    rest = rest.subspan(of_saved);
  }
  activations.gradients_.assign(rest.begin(), rest.end());
  return activations;
}

TensorId Activations::OfLayer(int64_t micro_batch, int64_t layer, Activation kind) const {
  const size_t index = static_cast<size_t>(layer) * kinds_ + static_cast<size_t>(kind);
  return Of(micro_batch).layers[index];
}

absl::Status Activations::SaveTensor(TensorId tensor, const float* values) {
  const TensorSpec& spec = engine_->Spec(tensor);
  for (uint64_t tile = 0; tile < spec.num_tiles(); ++tile) {
    SPILLWAY_ASSIGN_OR_RETURN(Lease lease, engine_->Acquire({tensor, tile}, Access::kDiscard));
    const int64_t elements = static_cast<int64_t>(lease.size_bytes() / ElementBytes(spec.dtype));
    pool_->ParallelRanges(elements, kCopyGrain, [&](int64_t begin, int64_t end) {
      FromFloats(spec.dtype, values + begin, end - begin,
                 ElementAt(spec.dtype, lease.data(), begin));
    });
    values += elements;
  }
  return absl::OkStatus();
}

absl::Status Activations::LoadTensor(TensorId tensor, After after, float* values) {
  const TensorSpec& spec = engine_->Spec(tensor);
  for (uint64_t tile = 0; tile < spec.num_tiles(); ++tile) {
    SPILLWAY_ASSIGN_OR_RETURN(Lease lease, engine_->Acquire({tensor, tile}, Access::kRead));
    const int64_t elements = static_cast<int64_t>(lease.size_bytes() / ElementBytes(spec.dtype));
    pool_->ParallelRanges(elements, kCopyGrain, [&](int64_t begin, int64_t end) {
      ToFloats(spec.dtype, ElementAt(spec.dtype, lease.data(), begin), end - begin, values + begin);
    });
    values += elements;
    if (after == After::kKeep) continue;
    lease.Release();
    SPILLWAY_RETURN_IF_ERROR(engine_->Discard({tensor, tile}));
  }
  return absl::OkStatus();
}

absl::Status Activations::Save(int64_t micro_batch, int64_t layer, Activation kind,
                               const float* values) {
  return SaveTensor(OfLayer(micro_batch, layer, kind), values);
}

absl::Status Activations::Load(int64_t micro_batch, int64_t layer, Activation kind, After after,
                               float* values) {
  return LoadTensor(OfLayer(micro_batch, layer, kind), after, values);
}

absl::Status Activations::SaveGradient(int64_t micro_batch, const float* values) {
  return SaveTensor(gradients_[static_cast<size_t>(micro_batch)], values);
}

absl::Status Activations::LoadGradient(int64_t micro_batch, After after, float* values) {
  return LoadTensor(gradients_[static_cast<size_t>(micro_batch)], after, values);
}

absl::Status Activations::SaveLogits(int64_t micro_batch, uint64_t vocabulary_tile,
                                     const float* values) {
  return SaveTensor(Of(micro_batch).logits[vocabulary_tile], values);
}

absl::Status Activations::UseLogits(
    int64_t micro_batch, uint64_t vocabulary_tile,
    const std::function<void(int64_t, int64_t, const float*)>& use) {
  const TensorId tensor = Of(micro_batch).logits[vocabulary_tile];
  const TensorSpec& spec = engine_->Spec(tensor);
  for (uint64_t tile = 0; tile < spec.num_tiles(); ++tile) {
    SPILLWAY_ASSIGN_OR_RETURN(Lease lease, engine_->Acquire({tensor, tile}, Access::kRead));
    use(static_cast<int64_t>(tile) * spec.tile_rows,
        static_cast<int64_t>(lease.size_bytes() / spec.row_bytes()), lease.as<float>().data());
    lease.Release();
    SPILLWAY_RETURN_IF_ERROR(engine_->Discard({tensor, tile}));
  }
  return absl::OkStatus();
}

}  // namespace spillway::trainer
