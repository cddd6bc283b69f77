// SPDX-License-Identifier: Apache-2.0
//
// Derives from the pager's state why a caller waits, for the timeline. It changes nothing.

#ifndef SPILLWAY_ENGINE_PAGER_STALL_H_
#define SPILLWAY_ENGINE_PAGER_STALL_H_

#include <optional>

#include "src/engine/pager/action.h"
#include "src/engine/pager/job.h"
#include "src/engine/pager/page_table.h"

namespace spillway::engine {

// Returns why the request has not been granted yet, or none if it does not wait any more.
std::optional<Stall> WhyWaits(const PageTable& pages, const Jobs& jobs, Ticket ticket);

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_PAGER_STALL_H_
