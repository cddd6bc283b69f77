// SPDX-License-Identifier: Apache-2.0
//
// What follows from a step's cost: how long a training takes, how long the drives live, how large a
// model could be, and what one more of each resource buys.

#ifndef SPILLWAY_TOOLS_SPILLWAY_PLAN_OUTLOOK_H_
#define SPILLWAY_TOOLS_SPILLWAY_PLAN_OUTLOOK_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "tools/spillway/plan/fit.h"
#include "tools/spillway/plan/question.h"
#include "tools/spillway/plan/step_cost.h"

namespace spillway::command {

// The model's operations (trainer::StepFlops) a second, as a share of the GPU's peak.
double ModelFlopUtilisation(const Question& question, const StepCost& cost);

// The tokens a step that hide the transfers: computing takes longer than they do, and waiting is
// less than a tenth of the step. Computing grows with the tokens; transfers and waiting grow
// little, and are taken as they are. 0: any number does.
int64_t TokensThatHideIo(const Question& question, const StepCost& cost);

double DaysFor(double train_tokens, const Question& question, const StepCost& cost);

struct DriveWear {
  double written_a_day = 0;  // bytes, to each drive
  double days = 0;           // until the drives' endurance is written; 0: it was not given
};
// `endurance_bytes`: that a drive's maker allows to be written to it; 0: not known.
DriveWear WearOf(double endurance_bytes, const Question& question, const StepCost& cost);

// The largest model of the same width that fits.
struct LargestModel {
  int64_t layers = 0;  // 0: not even one, or the model was counted
  uint64_t parameters = 0;
  bool is_limited = true;       // false: nothing but the 10^15 parameters of a plan limits it
  std::string_view full_first;  // the tier that limits it
};
// Errors of FitOf.
absl::StatusOr<LargestModel> LargestThatFits(const Question& question);

// A step with more of one resource.
struct MoreOfOne {
  std::string_view key;  // "drives"
  std::string words;     // "twice the drives"
  double seconds = 0;    // of a step
};
// The engine need not use what it has more of, so no step takes longer than with less: where an
// execution says so, its seconds are those of the question's machine. Sets `cost`, with its bound.
// Errors of QuickStep::Cost.
absl::StatusOr<std::vector<MoreOfOne>> PriceOneMoreOfEach(const Question& question, const Fit& fit,
                                                          const QuickStep& step, StepCost* cost);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_PLAN_OUTLOOK_H_
