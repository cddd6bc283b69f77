// SPDX-License-Identifier: Apache-2.0
//
// The data of the page, as one JSON object: the figures of each step, where its time went, the
// causes of its stalls, how full the tiers were, and the spans of some steps in detail. Its size is
// bounded, whatever the size of the run.

#ifndef SPILLWAY_TOOLS_SPILLWAY_REPORT_PAGE_DATA_H_
#define SPILLWAY_TOOLS_SPILLWAY_REPORT_PAGE_DATA_H_

#include "tools/spillway/report/run_files.h"

namespace spillway::run_report {

// Returns the object that page.js reads:
// {"steps":[…],"steps_in_all":…,"figures":{…},"trace":null|{"all":{…},"in_steps":{…},"steps":[…],
// "tiles":[…],"held":{…},"budget_bytes":{…},"names":[…],"windows":[…],…}}.
// "steps" of a long run are a part of them, among it the first step, the last one, and those that
// were evaluated or skipped. "figures" and "in_steps" are about all steps. "all" is about the part
// of the run of which the trace has all events.
Json PageData(const RunFiles& files);

}  // namespace spillway::run_report

#endif  // SPILLWAY_TOOLS_SPILLWAY_REPORT_PAGE_DATA_H_
