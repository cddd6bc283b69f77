// SPDX-License-Identifier: Apache-2.0
//
// Which parameters are held or trained otherwise than the rest: shell globs over the names that the
// model's tensors have in its folder, as model.layers.0.mlp.up_proj.weight.

#ifndef SPILLWAY_TOOLS_TRAINER_PARAMETER_GROUPS_H_
#define SPILLWAY_TOOLS_TRAINER_PARAMETER_GROUPS_H_

#include <string>
#include <vector>

namespace spillway::trainer {

struct RateFactor {
  std::string pattern;
  double factor = 1;

  friend bool operator==(const RateFactor&, const RateFactor&) = default;
};

struct ParameterGroups {
  std::vector<std::string> frozen;       // neither gradient nor state, and never written
  std::vector<std::string> no_decay;     // no weight decay
  std::vector<RateFactor> rate_factors;  // of the learning rate; the last that matches counts
  std::vector<std::string> fp32;         // weight and gradient in fp32 whatever the precision

  bool IsFrozen(const std::string& name) const;
  bool IsDecayed(const std::string& name) const;
  double RateFactorOf(const std::string& name) const;
  bool IsFp32(const std::string& name) const;

  friend bool operator==(const ParameterGroups&, const ParameterGroups&) = default;
};

// As a shell's: * any characters, dots and slashes too, ? one, [a-z] one of some, \ the next as it
// is.
bool MatchesGlob(const std::string& pattern, const std::string& name);

// The first of the patterns that matches none of the names; "" if all match some.
std::string FirstWithoutMatch(const std::vector<std::string>& patterns,
                              const std::vector<std::string>& names);

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_PARAMETER_GROUPS_H_
