// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/parameters.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "spillway/engine.h"
#include "src/base/status_macros.h"
#include "tools/trainer/compute/elements.h"

namespace spillway::trainer {
namespace {

// Calls `source` when the engine first reads bytes, and checks every value.
class CheckedSource {
 public:
  CheckedSource(WeightSource source, ParameterShape parameter)
      : source_(std::move(source)), parameter_(std::move(parameter)) {}

  absl::Status Read(uint64_t first_element, std::span<float> out) {
    if (!reader_) {
      SPILLWAY_ASSIGN_OR_RETURN(reader_, source_(parameter_));
    }
    SPILLWAY_RETURN_IF_ERROR(reader_(first_element * sizeof(float), std::as_writable_bytes(out)));
    for (size_t i = 0; i < out.size(); ++i) {
      if (!std::isfinite(out[i])) return BadValue(first_element + i, out[i], "is not finite");
    }
    return absl::OkStatus();
  }

  // Reads values, and fails if one does not fit the 16-bit type.
  absl::Status ReadForNarrow(DType type, uint64_t first_element, std::span<float> out) {
    SPILLWAY_RETURN_IF_ERROR(Read(first_element, out));
    const float overflow = type == DType::kF16 ? kFp16Overflow : kBf16Overflow;
    for (size_t i = 0; i < out.size(); ++i) {
      if (std::fabs(out[i]) < overflow) continue;
      return BadValue(first_element + i, out[i],
                      type == DType::kF16 ? "does not fit fp16: use bf16 or fp32"
                                          : "does not fit bf16: use fp32");
    }
    return absl::OkStatus();
  }

  // Reads values as elements of a 16-bit type.
  absl::Status ReadNarrow(DType type, uint64_t first_element, std::span<std::byte> out) {
    const size_t count = out.size() / ElementBytes(type);
    std::vector<float> floats(std::min(count, kPiece));
    for (size_t done = 0; done < count; done += floats.size()) {
      floats.resize(std::min(count - done, kPiece));
      SPILLWAY_RETURN_IF_ERROR(ReadForNarrow(type, first_element + done, floats));
      WriteElements(type, floats, out.data() + done * ElementBytes(type));
    }
    return absl::OkStatus();
  }

 private:
  static constexpr size_t kPiece = 65536;
  // The smallest magnitudes that round to infinity.
  static constexpr float kFp16Overflow = 65520.0f;
  static constexpr float kBf16Overflow = 0x1.FFp127f;

  absl::Status BadValue(uint64_t element, float value, std::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(parameter_.name, ": element ", element, " (",
                                                   value, ") ",
                                                   absl::string_view(what.data(), what.size())));
  }

  WeightSource source_;
  ParameterShape parameter_;
  Reader reader_;
};

Reader WeightReader(const WeightSource& source, const ParameterShape& parameter, DType type) {
  auto checked = std::make_shared<CheckedSource>(source, parameter);
  return [checked, type](uint64_t offset_bytes, std::span<std::byte> out) {
    const uint64_t first_element = offset_bytes / ElementBytes(type);
    if (type != DType::kF32) return checked->ReadNarrow(type, first_element, out);
    return checked->Read(first_element,
                         {reinterpret_cast<float*>(out.data()), out.size() / sizeof(float)});
  };
}

// Reads the first values of a tensor under compact state: a parameter's weight, or its state, which
// holds the remaining bits of the master weight.
Reader SplitReader(const WeightSource& source, const ParameterShape& parameter,
                   const TensorSpec& weight, const TensorSpec& tensor) {
  auto checked = std::make_shared<CheckedSource>(source, parameter);
  const Reader weights = [checked, type = weight.dtype](uint64_t offset_bytes,
                                                        std::span<std::byte> out) {
    return checked->ReadForNarrow(
        type, offset_bytes / sizeof(float),
        {reinterpret_cast<float*>(out.data()), out.size() / sizeof(float)});
  };
  return FirstValues(StateFormat::kCompact, weight, tensor, weights);
}

uint64_t CountParameters(const Description& model) {
  uint64_t total = 0;
  for (const ParameterShape& parameter : model.parameters)
    total += static_cast<uint64_t>(parameter.elements());
  return total;
}

// Returns a 128th of the model's parameters, rounded down to a power of two.
int64_t ShareOf(const Description& model, int64_t most) {
  constexpr int64_t kLeast = 64 << 10;
  const uint64_t share = std::bit_floor(CountParameters(model) / 128);
  return std::clamp(static_cast<int64_t>(share), kLeast, most);
}

}  // namespace

std::string_view Name(Precision precision) {
  constexpr std::array<std::string_view, kNumPrecisions> kNames = {"fp32", "fp16-amp", "bf16"};
  return kNames.at(static_cast<size_t>(precision));
}

DType ElementType(Precision precision) {
  constexpr std::array<DType, kNumPrecisions> kTypes = {DType::kF32, DType::kF16, DType::kBF16};
  return kTypes.at(static_cast<size_t>(precision));
}

std::vector<ParameterShape> ListParameters(const hf::ModelConfig& config) {
  return Describe(config).parameters;
}

TileSizes TilesOf(const Description& model, const ModelOptions& options) {
  constexpr uint64_t kLarge = uint64_t{1} << 28;  // parameters
  TileSizes tiles = options.tiles;
  if (tiles.values == 0) {
    const bool is_large = CountParameters(model) >= kLarge;
    tiles.values = ShareOf(model, is_large ? 16 * kMostOfSmallModels : kMostOfSmallModels);
  }
  if (tiles.state == 0) tiles.state = 4 * kMostOfSmallModels;
  tiles.state = std::min(tiles.state, tiles.values);
  return tiles;
}

TileSizes TilesOfStore(const Description& model, const TileSizes& stored) {
  if (stored.values > 0) return stored;
  const int64_t both = ShareOf(model, kMostOfSmallModels);
  return {both, both};
}

int64_t TileRows(int64_t rows, int64_t width, int64_t tile_elements) {
  const int64_t multiple = tile_elements > kMostOfSmallModels ? 8 : 32;
  const int64_t most = std::max<int64_t>(1, tile_elements / width);
  if (rows <= most) return rows;
  const int64_t tiles = (rows + most - 1) / most;
  const int64_t even = (rows + tiles - 1) / tiles;
  const int64_t rounded = (even + multiple - 1) / multiple * multiple;
  if (rounded <= most) return rounded;
  return most < multiple ? even : most / multiple * multiple;
}

int64_t WeightTileRows(int64_t rows, int64_t width, const TileSizes& tiles) {
  const int64_t of_state = TileRows(rows, width, tiles.state);
  const int64_t state_tiles = (rows + of_state - 1) / of_state;
  const int64_t most = std::max<int64_t>(1, tiles.values / width / of_state);
  const int64_t num_tiles = (state_tiles + most - 1) / most;
  return std::min(rows, (state_tiles + num_tiles - 1) / num_tiles * of_state);
}

std::vector<TensorSpec> ParameterTensorSpecs(const ParameterShape& parameter,
                                             const ModelOptions& options, const TileSizes& tiles) {
  const DType weight_type =
      options.groups.IsFp32(parameter.name) ? DType::kF32 : ElementType(options.precision);
  // A norm's vector is one tile, whatever its width.
  const bool is_vector = parameter.shape.size() == 1;
  const int64_t rows = parameter.shape[0], width = parameter.shape.back();
  const TensorSpec weight = {.name = parameter.name,
                             .dtype = weight_type,
                             .shape = parameter.shape,
                             .role = Role::kParameter,
                             .tile_rows = is_vector ? rows : WeightTileRows(rows, width, tiles)};
  std::vector<TensorSpec> specs = {weight};
  if (!options.training || options.groups.IsFrozen(parameter.name)) return specs;
  TensorSpec gradient = weight;
  gradient.name += "/grad";
  gradient.dtype = weight_type == DType::kF32 ? DType::kF32 : options.gradient_dtype;
  gradient.role = Role::kGradient;
  gradient.transient = true;
  specs.push_back(std::move(gradient));
  TensorSpec of_state = weight;
  if (!is_vector) of_state.tile_rows = TileRows(rows, width, tiles.state);
  const auto state = StateSpecs(options.rule, options.state_format, of_state);
  specs.insert(specs.end(), state->begin(), state->end());
  return specs;
}

Reader MissingTensor(const std::string& name) {
  return [name](uint64_t, std::span<std::byte>) -> absl::Status {
    return absl::DataLossError(
        absl::StrCat("the store's last commit has training state, but no tensor '", name,
                     "'; was it made by another version?"));
  };
}

absl::Status CheckFinite(const hf::ModelConfig& config, const WeightSource& source) {
  constexpr int64_t kPiece = int64_t{1} << 18;
  std::vector<float> values;
  for (const ParameterShape& parameter : ListParameters(config)) {
    CheckedSource checked(source, parameter);
    for (int64_t first = 0; first < parameter.elements(); first += kPiece) {
      values.resize(static_cast<size_t>(std::min(kPiece, parameter.elements() - first)));
      SPILLWAY_RETURN_IF_ERROR(checked.Read(static_cast<uint64_t>(first), values));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<Parameter>> RegisterParameters(Engine* engine,
                                                          const hf::ModelConfig& config,
                                                          const ModelOptions& options,
                                                          const WeightSource& source) {
  const Description model = Describe(config);
  const TileSizes tiles = TilesOf(model, options);
  std::vector<Parameter> registered;
  for (const ParameterShape& shape : model.parameters) {
    Parameter parameter{.name = shape.name, .shape = shape.shape, .tensors = {}};
    TensorsOfParameter& tensors = parameter.tensors;
    const std::vector<TensorSpec> specs = ParameterTensorSpecs(shape, options, tiles);
    const bool is_split = specs.size() > 1 && options.state_format == StateFormat::kCompact;
    for (const TensorSpec& spec : specs) {
      Reader reader;
      if (options.is_resumed && !spec.transient) {
        reader = MissingTensor(spec.name);
      } else if (is_split && spec.role != Role::kGradient) {
        reader = SplitReader(source, shape, specs.front(), spec);
      } else if (spec.role == Role::kParameter || spec.role == Role::kMasterWeight) {
        reader = WeightReader(source, shape, spec.dtype);
      }
      SPILLWAY_ASSIGN_OR_RETURN(const TensorId id, engine->Register(spec, reader));
      if (spec.role == Role::kParameter) tensors.weight = tensors.master = id;
      if (spec.role == Role::kMasterWeight) tensors.master = id;
      if (spec.role == Role::kGradient) tensors.gradient = id;
      if (is_split && spec.role == Role::kMoment) tensors.rest_of_master = id;
      if (spec.role == Role::kMasterWeight || spec.role == Role::kMoment)
        tensors.state.push_back(id);
    }
    registered.push_back(std::move(parameter));
  }
  return registered;
}

}  // namespace spillway::trainer
