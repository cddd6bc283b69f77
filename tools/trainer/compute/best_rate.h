// SPDX-License-Identifier: Apache-2.0

#ifndef SPILLWAY_TOOLS_TRAINER_COMPUTE_BEST_RATE_H_
#define SPILLWAY_TOOLS_TRAINER_COMPUTE_BEST_RATE_H_

#include <functional>

namespace spillway::trainer {

// Returns the best rate, in operations per second, of rounds of `operations` operations each.
// `time_round` does a round and returns its seconds. The first round does not count. At least 8
// more are done, until 5 in a row have not improved the rate by 5%, or until all took 0.5 s
// together; one counts in any case.
double BestRate(double operations, const std::function<double()>& time_round);

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_COMPUTE_BEST_RATE_H_
