// SPDX-License-Identifier: Apache-2.0
//
// The report's page: page.html with style, script and data inside, so that nothing is loaded from
// elsewhere.

#ifndef SPILLWAY_TOOLS_SPILLWAY_REPORT_PAGE_H_
#define SPILLWAY_TOOLS_SPILLWAY_REPORT_PAGE_H_

#include <string>

#include "tools/spillway/report/run_files.h"

namespace spillway::run_report {

// `data` is PageData's, with whatever else page.js shows of it.
std::string ToHtml(const Json& data);

}  // namespace spillway::run_report

#endif  // SPILLWAY_TOOLS_SPILLWAY_REPORT_PAGE_H_
