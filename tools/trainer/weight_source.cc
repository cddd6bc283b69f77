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
                                                  const ParameterShape& parameter) {
  const auto& [name, shape, unused] = parameter;
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
absl::Status CheckTiedHead(const hf::ModelFolder& folder, const ParameterShape& embedding,
                           const std::string& head) {
  if (folder.Find(head) == nullptr) return absl::OkStatus();
  const auto elements = static_cast<uint64_t>(embedding.elements());
  std::vector<float> of_embedding(std::min(elements, kPieceElements));
  std::vector<float> of_head(of_embedding.size());
  for (uint64_t first = 0; first < elements; first += kPieceElements) {
    const uint64_t count = std::min(elements - first, kPieceElements);
    of_embedding.resize(count);
    of_head.resize(count);
    SPILLWAY_RETURN_IF_ERROR(folder.Read(embedding.name, first, of_embedding));
    SPILLWAY_RETURN_IF_ERROR(folder.Read(head, first, of_head));
    if (std::memcmp(of_embedding.data(), of_head.data(), count * sizeof(float)) != 0) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "tie_word_embeddings is true but %s differs from %s; set it to false in config.json",
          head, embedding.name));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckTensors(const hf::ModelFolder& folder, const Description& model,
                          const std::string& head) {
  std::set<std::string> expected;
  for (const ParameterShape& parameter : model.parameters) {
    SPILLWAY_RETURN_IF_ERROR(FindTensor(folder, parameter).status());
    expected.insert(parameter.name);
  }
  if (model.is_tied() && folder.Find(head) != nullptr) {
    ParameterShape copy = model.parameters[model.tokens];
    copy.name = head;
    SPILLWAY_RETURN_IF_ERROR(FindTensor(folder, copy).status());
    expected.insert(head);
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
  const Description model = Describe(config);
  const std::string head = HeadName(config);
  SPILLWAY_RETURN_IF_ERROR(CheckTensors(*folder, model, head));
  const std::string tied = model.is_tied() ? model.parameters[model.tokens].name : "";
  return [folder, tied, head](const ParameterShape& parameter) -> absl::StatusOr<Reader> {
    SPILLWAY_RETURN_IF_ERROR(FindTensor(*folder, parameter).status());
    if (parameter.name == tied) SPILLWAY_RETURN_IF_ERROR(CheckTiedHead(*folder, parameter, head));
    return [folder, name = parameter.name](uint64_t offset_bytes, std::span<std::byte> out) {
      return FillFloats(name, offset_bytes, out, [&](uint64_t first, std::span<float> floats) {
        return folder->Read(name, first, floats);
      });
    };
  };
}

WeightSource RandomWeights(uint64_t seed) {
  return [seed](const ParameterShape& parameter) -> absl::StatusOr<Reader> {
    const std::string& name = parameter.name;
    const uint64_t stream = XXH3_64bits_withSeed(name.data(), name.size(), seed);
    return [=, first_value = parameter.first](uint64_t offset_bytes, std::span<std::byte> out) {
      return FillFloats(name, offset_bytes, out, [&](uint64_t first, std::span<float> floats) {
        if (first_value != First::kNormal)
          std::fill(floats.begin(), floats.end(), first_value == First::kOnes ? 1.0F : 0.0F);
        for (size_t i = 0; first_value == First::kNormal && i < floats.size(); ++i)
          floats[i] = Normal(stream, first + i);
        return absl::OkStatus();
      });
    };
  };
}

}  // namespace spillway::trainer
