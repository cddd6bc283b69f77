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
  std::string costs;  // "the state is rounded to 5 bytes a parameter": what it changes
};

struct FitAdvice {
  std::vector<FitChange> alone;     // each makes it fit by itself; the cheapest first
  std::vector<FitChange> together;  // these make it fit; empty if `alone` is not, or nothing does
};

// REQUIRES: `fit` is the question's. Empty if it fits. Errors of FitOf.
absl::StatusOr<FitAdvice> AdviseFit(const Question& question, const Fit& fit);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_PLAN_FIT_ADVICE_H_
