// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/bench/update/pairs.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "src/base/status_macros.h"

namespace spillway::bench_update {
namespace {

constexpr double kMomentum = 0.9;

// Returns the enumerators with these names, or all of them if there are no names.
template <typename E>
absl::StatusOr<std::vector<E>> Find(const std::vector<std::string>& names, int count,
                                    const char* flag) {
  std::vector<E> found;
  std::vector<std::string> known;
  for (int i = 0; i < count; ++i) {
    known.emplace_back(Name(static_cast<E>(i)));
    const bool is_named = std::find(names.begin(), names.end(), known.back()) != names.end();
    if (names.empty() || is_named) found.push_back(static_cast<E>(i));
  }
  for (const std::string& name : names) {
    if (std::find(known.begin(), known.end(), name) != known.end()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(flag, ": '", name, "' is not one of ", absl::StrJoin(known, ", ")));
  }
  return found;
}

std::vector<Rule> RulesOf(RuleKind kind) {
  std::vector<Rule> rules = {UsualRule(kind)};
  if (kind == RuleKind::kSgd || kind == RuleKind::kRmsProp) {
    rules.push_back(UsualRule(kind));
    rules.back().momentum = kMomentum;
  }
  return rules;
}

}  // namespace

absl::StatusOr<std::vector<RuleFormats>> FindPairs(const std::vector<std::string>& optimizers,
                                                   const std::vector<std::string>& formats) {
  SPILLWAY_ASSIGN_OR_RETURN(const std::vector<RuleKind> kinds,
                            Find<RuleKind>(optimizers, kNumRuleKinds, "--optimizer"));
  SPILLWAY_ASSIGN_OR_RETURN(const std::vector<StateFormat> wanted,
                            Find<StateFormat>(formats, kNumStateFormats, "--state-format"));
  std::vector<RuleFormats> pairs;
  for (const RuleKind kind : kinds) {
    for (const Rule& rule : RulesOf(kind)) {
      RuleFormats pair = {.rule = rule, .formats = {}};
      for (const StateFormat format : wanted) {
        if (Exists(rule, format)) pair.formats.push_back(format);
      }
      if (!pair.formats.empty()) pairs.push_back(pair);
    }
  }
  if (!pairs.empty()) return pairs;
  return absl::InvalidArgumentError(absl::StrCat("no state of ", absl::StrJoin(optimizers, ", "),
                                                 " rests as ", absl::StrJoin(formats, ", ")));
}

}  // namespace spillway::bench_update
