// SPDX-License-Identifier: Apache-2.0
//
// A step's timeline as a picture needs it: how busy each link and the computing is, in equal
// stretches of time.

#ifndef SPILLWAY_TOOLS_SPILLWAY_PLAN_STEP_LANES_H_
#define SPILLWAY_TOOLS_SPILLWAY_PLAN_STEP_LANES_H_

#include <cstddef>
#include <string_view>
#include <vector>

#include "spillway/timeline.h"

namespace spillway::command {

struct Lane {
  std::string_view title;
  TimelineEvent::Kind kind = TimelineEvent::Kind::kCompute;
  std::vector<double> busy;  // of each stretch, the share in which at least one such event ran
};

// Returns the lanes of computing, waiting and the four links, from the record's begin to its end.
// Empty if nothing was recorded, or events were dropped. REQUIRES: stretches >= 1.
std::vector<Lane> LanesOf(const Timeline& timeline, size_t stretches);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_PLAN_STEP_LANES_H_
