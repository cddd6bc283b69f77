// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/parameter_groups.h"

#include <fnmatch.h>

#include <algorithm>

namespace spillway::trainer {
namespace {

bool MatchesAny(const std::vector<std::string>& patterns, const std::string& name) {
  return std::any_of(patterns.begin(), patterns.end(),
                     [&](const std::string& pattern) { return MatchesGlob(pattern, name); });
}

}  // namespace

bool MatchesGlob(const std::string& pattern, const std::string& name) {
  return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

bool ParameterGroups::IsFrozen(const std::string& name) const { return MatchesAny(frozen, name); }

bool ParameterGroups::IsDecayed(const std::string& name) const {
  return !MatchesAny(no_decay, name);
}

double ParameterGroups::RateFactorOf(const std::string& name) const {
  double factor = 1;
  for (const RateFactor& of : rate_factors) {
    if (MatchesGlob(of.pattern, name)) factor = of.factor;
  }
  return factor;
}

bool ParameterGroups::IsFp32(const std::string& name) const { return MatchesAny(fp32, name); }

std::string FirstWithoutMatch(const std::vector<std::string>& patterns,
                              const std::vector<std::string>& names) {
  for (const std::string& pattern : patterns) {
    const bool matches = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
      return MatchesGlob(pattern, name);
    });
    if (!matches) return pattern;
  }
  return "";
}

}  // namespace spillway::trainer
