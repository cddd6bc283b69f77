// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/store/stored_spec.h"

#include <cstdint>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"
#include "src/base/status_macros.h"

namespace spillway::command {
namespace {

// Parses the engine's description of a tensor; none if it is something else.
std::optional<TensorSpec> ParseSpec(const std::string& name, const std::string& description) {
  const auto json = nlohmann::json::parse(description, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  TensorSpec spec{.name = name};
  const auto dtype = json.find("dtype");
  const auto shape = json.find("shape");
  const auto rows = json.find("tile_rows");
  if (dtype == json.end() || shape == json.end() || rows == json.end()) return std::nullopt;
  if (!dtype->is_string() || !shape->is_array() || !rows->is_number_integer()) return std::nullopt;
  bool known = false;
  for (const DType each : {DType::kF32, DType::kF16, DType::kBF16, DType::kU8}) {
    if (dtype->get<std::string>() != Name(each)) continue;
    spec.dtype = each;
    known = true;
  }
  for (const auto& dimension : *shape) {
    if (!dimension.is_number_integer() || dimension.get<int64_t>() < 1) return std::nullopt;
    spec.shape.push_back(dimension.get<int64_t>());
  }
  spec.tile_rows = rows->get<int64_t>();
  return known && spec.tile_rows >= 0 ? std::optional(spec) : std::nullopt;
}

}  // namespace

absl::StatusOr<std::optional<TensorSpec>> FindSpec(engine::TensorReader& reader,
                                                   const std::string& name) {
  SPILLWAY_ASSIGN_OR_RETURN(const std::optional<std::string> description, reader.Description(name));
  if (!description) return std::optional<TensorSpec>();
  std::optional<TensorSpec> spec = ParseSpec(name, *description);
  if (!spec) return reader.Damaged("the description of tensor " + name + " is unknown");
  return spec;
}

}  // namespace spillway::command
