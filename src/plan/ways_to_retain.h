// SPDX-License-Identifier: Apache-2.0
//
// Chooses the gaps through which a tier retains its tiles, from the whole period and the prices of
// room.

#ifndef SPILLWAY_PLAN_WAYS_TO_RETAIN_H_
#define SPILLWAY_PLAN_WAYS_TO_RETAIN_H_

#include <cstdint>
#include <vector>

#include "src/plan/retention.h"
#include "src/plan/stop.h"

namespace spillway::plan {

// Returns good sets of gaps to retain, the best first. In each, uses and retained gaps fit in
// `capacity` bytes. There are several sets unless the period is long, since placing frames costs
// each of them a different amount. Once `stop` is true, it returns soon, with sets that are not
// used.
std::vector<Retained> WaysToRetain(const Retention& retention, uint64_t capacity, Stop stop = {});
// Returns one such set, found with a small part of the effort: for estimates.
std::vector<Retained> OneWayToRetain(const Retention& retention, uint64_t capacity, Stop stop = {});
using ChooseRetained = std::vector<Retained>(const Retention& retention, uint64_t capacity,
                                             Stop stop);

// Retains every gap in which the tile has bytes. It is for a tier that has no tier below.
Retained RetainAll(const Retention& retention);

}  // namespace spillway::plan

#endif  // SPILLWAY_PLAN_WAYS_TO_RETAIN_H_
