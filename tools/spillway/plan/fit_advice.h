// SPDX-License-Identifier: Apache-2.0
//
// What would make a step fit that does not: the changes that suffice alone, and the cheapest set of
// changes where none does. Whether one suffices is decided as for the question itself (fit.h).

#ifndef SPILLWAY_TOOLS_SPILLWAY_PLAN_FIT_ADVICE_H_
#define SPILLWAY_TOOLS_SPILLWAY_PLAN_FIT_ADVICE_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/spillway/plan/fit.h"
#include "tools/spillway/plan/question.h"

namespace spillway::command {

struct FitChange {
  std::string flags;  // "--state-format compact"
  std::string costs;  // what it changes, as "optimizer state is rounded"
};

struct FitAdvice {
  std::vector<FitChange> alone;  // each makes it fit by itself; the cheapest first
  // These make it fit together. Empty if something else than a larger machine does so alone, or if
  // nothing does.
  std::vector<FitChange> together;
};

// REQUIRES: `fit` is the question's. Empty if it fits. Errors of FitOf.
absl::StatusOr<FitAdvice> AdviseFit(const Question& question, const Fit& fit);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_PLAN_FIT_ADVICE_H_
