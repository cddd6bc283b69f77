// SPDX-License-Identifier: Apache-2.0
//
// JSON as these formats need it: a name twice in an object, which parsers drop silently, is an
// error, and so is text whose nesting or number of values would exhaust memory.

#ifndef SPILLWAY_TOOLS_HF_STRICT_JSON_H_
#define SPILLWAY_TOOLS_HF_STRICT_JSON_H_

#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"

namespace spillway::hf {

// InvalidArgument names `origin` and what is wrong. The whole of `text` must be one value (white
// space aside).
absl::StatusOr<nlohmann::json> ParseStrictJson(std::string_view text, std::string_view origin);

// `value` as a short piece of JSON for a message: valid UTF-8, cut off past 80 bytes.
std::string Excerpt(const nlohmann::json& value);
// A name from a file for a message: quoted and escaped, cut off past 80 bytes.
std::string Quoted(std::string_view name);

}  // namespace spillway::hf

#endif  // SPILLWAY_TOOLS_HF_STRICT_JSON_H_
