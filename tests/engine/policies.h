// SPDX-License-Identifier: Apache-2.0
//
// Opens engines under each policy, for tests that compare them.

#ifndef SPILLWAY_TESTS_ENGINE_POLICIES_H_
#define SPILLWAY_TESTS_ENGINE_POLICIES_H_

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "spillway/engine.h"
#include "src/engine/open_engine.h"
#include "tests/plan/policies.h"

namespace spillway::engine {

// If there is no policy, nothing is planned.
using MaybePolicy = std::optional<plan::Policy>;
inline constexpr MaybePolicy kOnDemand = std::nullopt;

inline absl::StatusOr<std::unique_ptr<Engine>> OpenWith(MaybePolicy policy, EngineOptions options) {
  options.plan_steps = policy.has_value();
  return OpenEngine(std::move(options),
                    {.choose_retained = FunctionOf(policy.value_or(plan::Policy::kPlanned))});
}

inline std::string NameOf(MaybePolicy policy) {
  std::string name(policy ? plan::Name(*policy) : "demand");
  name[0] = static_cast<char>(name[0] - 'a' + 'A');
  return name;
}

}  // namespace spillway::engine

#endif  // SPILLWAY_TESTS_ENGINE_POLICIES_H_
