// SPDX-License-Identifier: Apache-2.0
//
// Makes the readers of each parameter's fp32 bytes.

#include "tools/trainer/weight_source.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numbers>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "src/base/status_macros.h"
#include "tools/hf/model_folder.h"
#include "tools/hf/safetensors_header.h"
#include "tools/hf/strict_json.h"
#include "tools/trainer/parameters.h"
#include "xxhash.h"

namespace spillway::trainer {
namespace {

constexpr double kStandardDeviation = 0.02;
constexpr char kEmbedding[] = "model.embed_tokens.weight";
constexpr char kHead[] = "lm_head.weight";
constexpr uint64_t kPieceElements = uint64_t{1} << 18;  // of two tensors that are compared

// Calls `fill(first element, floats)` for a piece. Fails if the piece does not consist of whole
// floats.
template <typename Fill>
absl::Status FillFloats(const std::string& name, uint64_t offset_bytes, std::span<std::byte> out,
                        const Fill& fill) {
  if (offset_bytes % sizeof(float) != 0 || out.size() % sizeof(float) != 0) {
    return absl::InternalError(
        absl::StrFormat("%s: asked for bytes [%d, %d), which cut an fp32 element", name,
                        offset_bytes, offset_bytes + out.size()));
  }
  return fill(offset_bytes / sizeof(float),
              std::span(reinterpret_cast<float*>(out.data()), out.size() / sizeof(float)));
}

// Returns element `index` of a stream of numbers that are uniform in (0, 1].
double Uniform(uint64_t stream, uint64_t index) {
  const uint64_t bits = XXH3_64bits_withSeed(&index, sizeof(index), stream);
  return static_cast<double>((bits >> 11) + 1) * 0x1.0p-53;
}

float Normal(uint64_t stream, uint64_t index) {
  const double radius = std::sqrt(-2.0 * std::log(Uniform(stream, 2 * index)));
  const double angle = 2.0 * std::numbers::pi * Uniform(stream, 2 * index + 1);
  return static_cast<float>(kStandardDeviation * radius * std::cos(angle));
}

// Finds the parameter's tensor in the folder. Fails with the reason if it does not fit.
absl::StatusOr<const hf::TensorEntry*> FindTensor(const hf::ModelFolder& folder,
                                                  const std::string& name,
                                                  const std::vector<int64_t>& shape) {
  const hf::TensorEntry* entry = folder.Find(name);
  if (entry == nullptr) {
    return absl::NotFoundError(absl::StrFormat(
        "%s: the weights have no tensor %s, which config.json calls for", folder.path(), name));
  }
  if (!std::equal(entry->shape.begin(), entry->shape.end(), shape.begin(), shape.end())) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: tensor %s has the shape %s; config.json calls for %s", folder.path(),
                        name, hf::FormatShape(entry->shape), hf::FormatShape(shape)));
  }
  if (!entry->dtype) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: tensor %s is of type %s; F32, F16, BF16 and F64 are read",
                        folder.path(), name, hf::Quoted(entry->dtype_name)));
  }
  return entry;
}

// InvalidArgument if the head of a tied embedding is no copy of it. transformers would use this
// head. Reads both tensors if the folder has both, which is rare. CheckTensors has compared their
// shapes.
absl::Status CheckTiedHead(const hf::ModelFolder& folder, const std::vector<int64_t>& shape) {
  if (folder.Find(kHead) == nullptr) return absl::OkStatus();
  const auto elements = static_cast<uint64_t>(ParameterShape{kEmbedding, shape}.elements());
  std::vector<float> embedding(std::min(elements, kPieceElements));
  std::vector<float> head(embedding.size());
  for (uint64_t first = 0; first < elements; first += kPieceElements) {
    const uint64_t count = std::min(elements - first, kPieceElements);
    const std::span<float> of_embedding = std::span(embedding).first(count);
    const std::span<float> of_head = std::span(head).first(count);
    SPILLWAY_RETURN_IF_ERROR(folder.Read(kEmbedding, first, of_embedding));
    SPILLWAY_RETURN_IF_ERROR(folder.Read(kHead, first, of_head));
    if (std::memcmp(of_embedding.data(), of_head.data(), of_head.size_bytes()) != 0) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "tie_word_embeddings is true but %s differs from %s; set it to false in config.json",
          kHead, kEmbedding));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckTensors(const hf::ModelFolder& folder, const hf::ModelConfig& config) {
  std::set<std::string> expected;
  for (const ParameterShape& parameter : ListParameters(config)) {
    SPILLWAY_RETURN_IF_ERROR(FindTensor(folder, parameter.name, parameter.shape).status());
    expected.insert(parameter.name);
  }
  if (config.tie_word_embeddings && folder.Find(kHead) != nullptr) {
    SPILLWAY_RETURN_IF_ERROR(
        FindTensor(folder, kHead, {config.vocab_size, config.hidden_size}).status());
    expected.insert(kHead);  // a copy of the embedding
  }
  for (const std::string& name : folder.names()) {
    if (expected.contains(name)) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: the weights hold a tensor %s, for which the model of config.json has no place",
        folder.path(), hf::Quoted(name)));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<WeightSource> OpenFolderWeights(const std::string& path,
                                               const hf::ModelConfig& config) {
  SPILLWAY_ASSIGN_OR_RETURN(const std::shared_ptr<const hf::ModelFolder> folder,
                            hf::ModelFolder::Open(path));
  SPILLWAY_RETURN_IF_ERROR(CheckTensors(*folder, config));
  return [folder, is_tied = config.tie_word_embeddings](
             const std::string& name, const std::vector<int64_t>& shape) -> absl::StatusOr<Reader> {
    SPILLWAY_RETURN_IF_ERROR(FindTensor(*folder, name, shape).status());
    if (is_tied && name == kEmbedding) {
      SPILLWAY_RETURN_IF_ERROR(CheckTiedHead(*folder, shape));
    }
    return [folder, name](uint64_t offset_bytes, std::span<std::byte> out) {
      return FillFloats(name, offset_bytes, out, [&](uint64_t first, std::span<float> floats) {
        return folder->Read(name, first, floats);
      });
    };
  };
}

WeightSource RandomWeights(uint64_t seed) {
  return
      [seed](const std::string& name, const std::vector<int64_t>& shape) -> absl::StatusOr<Reader> {
        const bool is_norm = shape.size() < 2;
        const uint64_t stream = XXH3_64bits_withSeed(name.data(), name.size(), seed);
        return [=](uint64_t offset_bytes, std::span<std::byte> out) {
          return FillFloats(name, offset_bytes, out, [&](uint64_t first, std::span<float> floats) {
            for (size_t i = 0; i < floats.size(); ++i)
              floats[i] = is_norm ? 1.0F : Normal(stream, first + i);
            return absl::OkStatus();
          });
        };
      };
}

}  // namespace spillway::trainer
