// SPDX-License-Identifier: Apache-2.0
//
// Groups of parameters that are stored or trained differently from the rest. Shell globs select
// them by the names of the tensors in the model's folder, such as
// model.layers.0.mlp.up_proj.weight.

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
  std::vector<std::string> frozen;       // no gradient and no state, and never written
  std::vector<std::string> no_decay;     // no weight decay
  std::vector<RateFactor> rate_factors;  // of the learning rate; the last match applies
  std::vector<std::string> fp32;         // weight and gradient in fp32 whatever the precision

  bool IsFrozen(const std::string& name) const;
  bool IsDecayed(const std::string& name) const;
  double RateFactorOf(const std::string& name) const;
  bool IsFp32(const std::string& name) const;

  friend bool operator==(const ParameterGroups&, const ParameterGroups&) = default;
};

// Whether a shell glob matches the name: * matches any characters, dots and slashes included, ? any
// one character, [a-z] one of a set, and \ quotes the next character.
bool MatchesGlob(const std::string& pattern, const std::string& name);

// Returns the first pattern that matches none of the names; "" if every pattern matches one.
std::string FirstWithoutMatch(const std::vector<std::string>& patterns,
                              const std::vector<std::string>& names);

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_PARAMETER_GROUPS_H_
