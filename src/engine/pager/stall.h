// SPDX-License-Identifier: Apache-2.0
//
// Why a caller waits, read off the pager's state for a timeline. It decides nothing.

#ifndef SPILLWAY_ENGINE_PAGER_STALL_H_
#define SPILLWAY_ENGINE_PAGER_STALL_H_

#include <optional>

#include "src/engine/pager/action.h"
#include "src/engine/pager/job.h"
#include "src/engine/pager/page_table.h"

namespace spillway::engine {

// Why the request has not been granted yet; none: it has.
std::optional<Stall> WhyWaits(const PageTable& pages, const Jobs& jobs, Ticket ticket);

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_PAGER_STALL_H_
