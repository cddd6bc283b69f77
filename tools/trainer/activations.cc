// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/activations.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "spillway/engine.h"
#include "tools/hf/status_macros.h"
#include "tools/trainer/kernels/convert.h"
#include "tools/trainer/parameters.h"

namespace spillway::trainer {
namespace {

struct Kind {
  const char* name;
  int64_t width;
};

std::vector<Kind> KindsOfBlock(const hf::ModelConfig& config, const ModelOptions& options) {
  const int64_t query_width = config.num_heads * config.head_dim;
  const int64_t key_width = config.num_kv_heads * config.head_dim;
  if (options.checkpoint_activations) return {{"input", config.hidden_size}};
  return {{"input", config.hidden_size},
          {"query", query_width},
          {"key", key_width},
          {"value", key_width},
          {"attention", query_width},
          {"middle", config.hidden_size},
          {"gate", config.intermediate_size},
          {"up", config.intermediate_size}};
}

// Elements that a thread copies or converts at least.
constexpr int64_t kCopyGrain = 4096;

}  // namespace

std::vector<TensorSpec> ActivationSpecs(const hf::ModelConfig& config,
                                        const ModelOptions& options) {
  std::vector<TensorSpec> specs;
  if (!options.training) return specs;
  const int64_t tokens = options.micro_batch * options.sequence;
  const int64_t tile_elements = TileElements(config);
  const auto add = [&](std::string name, int64_t width, DType dtype) {
    specs.push_back({.name = std::move(name),
                     .dtype = dtype,
                     .shape = {tokens, width},
                     .role = Role::kActivation,
                     .tile_rows = TileRows(tokens, width, tile_elements),
                     .transient = true});
  };
  const DType dtype = options.precision == Precision::kFp16Amp ? DType::kF16 : DType::kF32;
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    for (const Kind& kind : KindsOfBlock(config, options)) {
      add(absl::StrCat("activation/", layer, "/", kind.name), kind.width, dtype);
    }
  }
  if (options.checkpoint_activations) return specs;
  const int64_t rows = TileRows(config.vocab_size, config.hidden_size, tile_elements);
  for (int64_t first = 0; first < config.vocab_size; first += rows) {
    add(absl::StrCat("activation/logits/", first / rows), std::min(rows, config.vocab_size - first),
        DType::kF32);
  }
  return specs;
}

absl::StatusOr<Activations> Activations::Register(TileAccess* tiles, ThreadPool* pool,
                                                  const hf::ModelConfig& config,
                                                  const ModelOptions& options) {
  Activations activations(tiles, pool);
  activations.kinds_ = options.checkpoint_activations ? 1 : kNumActivations;
  const size_t of_layers = activations.kinds_ * static_cast<size_t>(config.num_layers);
  for (const TensorSpec& spec : ActivationSpecs(config, options)) {
    SPILLWAY_HF_ASSIGN_OR_RETURN(const TensorId id, tiles->engine()->Register(spec));
    auto& list = activations.layers_.size() < of_layers ? activations.layers_ : activations.logits_;
    list.push_back(id);
  }
  return activations;
}

TensorId Activations::OfLayer(int64_t layer, Activation kind) const {
  return layers_[static_cast<size_t>(layer) * kinds_ + static_cast<size_t>(kind)];
}

absl::Status Activations::SaveTensor(TensorId tensor, const float* values) {
  const TensorSpec& spec = tiles_->engine()->Spec(tensor);
  for (uint64_t tile = 0; tile < spec.num_tiles(); ++tile) {
    SPILLWAY_HF_ASSIGN_OR_RETURN(Lease lease, tiles_->Acquire({tensor, tile}, Access::kDiscard));
    const int64_t elements = static_cast<int64_t>(lease.size_bytes() / ElementBytes(spec.dtype));
    pool_->ParallelRanges(elements, kCopyGrain, [&](int64_t begin, int64_t end) {
      if (spec.dtype == DType::kF16) {
        FloatsToHalves(values + begin, end - begin, lease.as<uint16_t>().data() + begin);
      } else {
        std::memcpy(lease.as<float>().data() + begin, values + begin,
                    static_cast<size_t>(end - begin) * sizeof(float));
      }
    });
    values += elements;
  }
  return absl::OkStatus();
}

absl::Status Activations::Save(int64_t layer, Activation kind, const float* values) {
  return SaveTensor(OfLayer(layer, kind), values);
}

absl::Status Activations::Load(int64_t layer, Activation kind, float* values) {
  const TensorId tensor = OfLayer(layer, kind);
  const TensorSpec& spec = tiles_->engine()->Spec(tensor);
  for (uint64_t tile = 0; tile < spec.num_tiles(); ++tile) {
    SPILLWAY_HF_ASSIGN_OR_RETURN(Lease lease, tiles_->Acquire({tensor, tile}, Access::kRead));
    const int64_t elements = static_cast<int64_t>(lease.size_bytes() / ElementBytes(spec.dtype));
    pool_->ParallelRanges(elements, kCopyGrain, [&](int64_t begin, int64_t end) {
      if (spec.dtype == DType::kF16) {
        HalvesToFloats(lease.as<uint16_t>().data() + begin, end - begin, values + begin);
      } else {
        std::memcpy(values + begin, lease.as<float>().data() + begin,
                    static_cast<size_t>(end - begin) * sizeof(float));
      }
    });
    values += elements;
    lease.Release();
    SPILLWAY_HF_RETURN_IF_ERROR(tiles_->engine()->Discard({tensor, tile}));
  }
  return absl::OkStatus();
}

absl::Status Activations::SaveLogits(uint64_t vocabulary_tile, const float* values) {
  return SaveTensor(logits_[vocabulary_tile], values);
}

absl::Status Activations::UseLogits(
    uint64_t vocabulary_tile, const std::function<void(int64_t, int64_t, const float*)>& use) {
  const TensorId tensor = logits_[vocabulary_tile];
  const TensorSpec& spec = tiles_->engine()->Spec(tensor);
  for (uint64_t tile = 0; tile < spec.num_tiles(); ++tile) {
    SPILLWAY_HF_ASSIGN_OR_RETURN(Lease lease, tiles_->Acquire({tensor, tile}, Access::kRead));
    use(static_cast<int64_t>(tile) * spec.tile_rows,
        static_cast<int64_t>(lease.size_bytes() / spec.row_bytes()), lease.as<float>().data());
    lease.Release();
    SPILLWAY_HF_RETURN_IF_ERROR(tiles_->engine()->Discard({tensor, tile}));
  }
  return absl::OkStatus();
}

}  // namespace spillway::trainer
