// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/flops.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <variant>

#include "tools/trainer/description.h"

namespace spillway::trainer {

double StepFlops(const hf::ModelConfig& config, const ModelOptions& options) {
  const Description model = Describe(config);
  double of_token = 0;
  const auto add_weight = [&](const Linear& linear) {
    const ParameterShape& weight = model.parameters[linear.weight];
    const double of_each = options.groups.IsFrozen(weight.name) ? 4 : 6;
    of_token += of_each * static_cast<double>(weight.elements());
  };
  for (const Block& block : model.blocks) {
    for (const Sublayer& sublayer : block.sublayers) {
      ForEachLinear(sublayer, add_weight);
      const auto* attention = std::get_if<Attention>(&sublayer.branch);
      if (attention == nullptr) continue;
      const int64_t keys =
          attention->window == 0 ? options.sequence : std::min(attention->window, options.sequence);
      of_token += 12 * static_cast<double>(attention->query_width() * keys);
    }
  }
  add_weight(model.head);
  const auto tokens =
      static_cast<double>(options.accumulate * options.micro_batch * options.sequence);
  return tokens * of_token;
}

}  // namespace spillway::trainer
