// SPDX-License-Identifier: Apache-2.0
//
// What the engine counted: bytes over each edge, bytes held in each tier, waiting and its share
// that compute hid. Counters run from Engine::Open; a caller that wants a step's share subtracts.

#ifndef SPILLWAY_STATS_H_
#define SPILLWAY_STATS_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "spillway/types.h"

namespace spillway {

// Bytes over one edge, counted when the transfer completes.
struct Traffic {
  uint64_t read_bytes = 0;     // towards the device: NVMe→pinned, or pinned→device
  uint64_t written_bytes = 0;  // away from it: pinned→NVMe, or device→pinned
};

// Room taken in one tier, in bytes of frames (or extents, for NVMe).
struct Occupancy {
  uint64_t now_bytes = 0;
  uint64_t peak_bytes = 0;
};

// How steps that repeat are followed by plan (EngineOptions::plan_steps).
struct PlanStats {
  uint64_t plans = 0;  // made
  uint64_t steps = 0;  // that followed one from their first transfer to their last
  // Leases of such steps that did not wait for the plan's transfers and were served on demand:
  // another caller was behind, or the tile had had to leave.
  uint64_t pulled = 0;
  uint64_t deviations = 0;  // plans left because a step was another, or something failed
  // What the transfers of the last such step came to; none yet: zeros.
  Traffic nvme;
  Traffic pinned;
  // The same as the plan foretold it, and the bound that no schedule within the budgets can beat
  // (src/plan/MODEL.md); both over all edges, of the plan made last. Zeros: none was made.
  uint64_t planned_bytes = 0;
  uint64_t bytes_bound = 0;
  uint64_t nvme_bytes_bound = 0;  // over NVMe alone
  // Of the last step, if it has a plan (else zeros), in seconds: what it could not have been
  // quicker than, computing between leases for as long as it did (commits left out), at the best
  // rates that links, copies and checksums have sustained in this run; and computing and transfers
  // if the other took no time.
  double time_bound_seconds = 0;
  double compute_seconds = 0;
  double transfer_seconds = 0;
  std::string not_planned;  // why no plan follows the last step, where one could; else empty
};

struct EngineStats {
  Traffic nvme;                              // between NVMe and pinned memory
  Traffic pinned;                            // between pinned memory and the device
  std::array<Traffic, kNumRoles> role_nvme;  // by Role; together they are `nvme`

  std::array<Occupancy, kNumTiers> tiers;                              // by Tier
  std::array<std::array<Occupancy, kNumTiers>, kNumRoles> role_tiers;  // by Role, then Tier

  uint64_t acquires = 0;         // leases granted
  uint64_t acquire_waits = 0;    // of these, how many had to wait for bytes or for room
  double stall_seconds = 0;      // callers' time blocked in Acquire and AcquireHost
  double io_seconds = 0;         // wall time with at least one transfer in flight
  double hidden_seconds = 0;     // of io_seconds, the part during which no caller was blocked
  uint64_t prefetches = 0;       // tiles moved before they were asked for
  uint64_t prefetch_wasted = 0;  // of these, evicted unused
  uint64_t commits = 0;
  PlanStats plan;
  Placement placement = {};  // as the engine was opened

  // What the machine could not give, in words ("io_uring unavailable (EPERM): using threads"). Each
  // is announced once.
  std::vector<std::string> fallbacks;
  std::string io_engine;  // "uring" or "posix"; empty without a store
  std::string device;     // "host" or the GPU's name

  // The share of transfer time that compute hid; 1 when nothing moved.
  double overlap() const { return io_seconds > 0 ? hidden_seconds / io_seconds : 1.0; }
};

}  // namespace spillway

#endif  // SPILLWAY_STATS_H_
