// SPDX-License-Identifier: Apache-2.0
//
// What the page shows, as one JSON object: figures of each step, where its time went, what was
// waited for, how full the tiers were, and the spans of some steps to look at closely. Bounded in
// size whatever the run's.

#ifndef SPILLWAY_TOOLS_SPILLWAY_REPORT_PAGE_DATA_H_
#define SPILLWAY_TOOLS_SPILLWAY_REPORT_PAGE_DATA_H_

#include "tools/spillway/report/run_files.h"

namespace spillway::run_report {

// {"steps":[…],"steps_in_all":…,"trace":null|{"steps":[…],"stalls":[…],"tiles":[…],"links":{…},
// "held":{…},"budget_bytes":{…},"names":[…],"windows":[…],…}}. page.js reads it.
Json PageData(const RunFiles& files);

}  // namespace spillway::run_report

#endif  // SPILLWAY_TOOLS_SPILLWAY_REPORT_PAGE_DATA_H_
