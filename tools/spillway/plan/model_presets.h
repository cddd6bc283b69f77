// SPDX-License-Identifier: Apache-2.0
//
// Published models by name, as the configurations that their nearest row of the model types'
// table takes. A preset whose own type has no row takes that row's walk with its own shapes.

#ifndef SPILLWAY_TOOLS_SPILLWAY_PLAN_MODEL_PRESETS_H_
#define SPILLWAY_TOOLS_SPILLWAY_PLAN_MODEL_PRESETS_H_

#include <span>
#include <string_view>

#include "absl/status/statusor.h"
#include "tools/hf/config.h"

namespace spillway::command {

struct ModelPreset {
  std::string_view name;  // as --model takes it
  std::string_view title;
  double published_parameters = 0;
  std::string_view config;   // as config.json has it
  std::string_view differs;  // what the row's walk computes otherwise; empty: nothing
  std::string_view source;
};
std::span<const ModelPreset> ModelPresets();
// Null if there is no preset of this name. Case does not count.
const ModelPreset* FindModelPreset(std::string_view name);
absl::StatusOr<hf::ModelConfig> ConfigOf(const ModelPreset& preset);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_PLAN_MODEL_PRESETS_H_
