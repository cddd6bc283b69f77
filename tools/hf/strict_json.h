// SPDX-License-Identifier: Apache-2.0
//
// Parses JSON as strictly as these formats need it. A name that occurs twice in an object is an
// error (parsers drop one silently), and so is text whose nesting or number of values would exhaust
// memory.

#ifndef SPILLWAY_TOOLS_HF_STRICT_JSON_H_
#define SPILLWAY_TOOLS_HF_STRICT_JSON_H_

#include <cstddef>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace spillway::hf {

// Objects and arrays within each other that a reader of JSON here takes at most.
inline constexpr size_t kMaxJsonDepth = 64;

// Parses `text`, which must be exactly one value, apart from white space. InvalidArgument names
// `origin` and what is wrong.
absl::StatusOr<nlohmann::json> ParseStrictJson(std::string_view text, std::string_view origin);

// Returns `value` as a short piece of JSON for a message: valid UTF-8, cut off past 80 bytes.
std::string Excerpt(const nlohmann::json& value);
// Returns a name from a file for use in a message: quoted and escaped, cut off past 80 bytes.
std::string Quoted(std::string_view name);

}  // namespace spillway::hf

#endif  // SPILLWAY_TOOLS_HF_STRICT_JSON_H_
