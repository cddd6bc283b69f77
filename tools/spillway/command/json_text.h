// SPDX-License-Identifier: Apache-2.0
//
// The JSON that commands print.

#ifndef SPILLWAY_TOOLS_SPILLWAY_COMMAND_JSON_TEXT_H_
#define SPILLWAY_TOOLS_SPILLWAY_COMMAND_JSON_TEXT_H_

#include <string>

#include "nlohmann/json_fwd.hpp"

namespace spillway::command {

// Returns the value as text: on one line, or with `indent` spaces for each level. The text is
// always JSON: bytes of a string that are not UTF-8, as a file's name may have them, become U+FFFD.
std::string JsonText(const nlohmann::ordered_json& json, int indent = -1);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_COMMAND_JSON_TEXT_H_
