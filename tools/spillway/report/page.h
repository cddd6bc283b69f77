// SPDX-License-Identifier: Apache-2.0
//
// The report's page: page.html with its style, script and data inlined, so that nothing is loaded
// from elsewhere.

#ifndef SPILLWAY_TOOLS_SPILLWAY_REPORT_PAGE_H_
#define SPILLWAY_TOOLS_SPILLWAY_REPORT_PAGE_H_

#include <string>

#include "tools/spillway/report/run_files.h"

namespace spillway::run_report {

// Returns the page. `data` is the result of PageData, with the other members that page.js shows.
std::string ToHtml(const Json& data);

}  // namespace spillway::run_report

#endif  // SPILLWAY_TOOLS_SPILLWAY_REPORT_PAGE_H_
