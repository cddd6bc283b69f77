// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/command/json_text.h"

#include "nlohmann/json.hpp"

namespace spillway::command {

std::string JsonText(const nlohmann::ordered_json& json, int indent) {
  return json.dump(indent, ' ', /*ensure_ascii=*/false,
                   nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace spillway::command
