// SPDX-License-Identifier: Apache-2.0
//
// The engine's counters: bytes moved between tiers, bytes held in each tier, the time that callers
// waited, and the share of transfer time that compute hid. Counters start at zero in Engine::Open.
// The counts of one step are the differences of the counters after and before it.

#ifndef SPILLWAY_STATS_H_
#define SPILLWAY_STATS_H_

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "spillway/types.h"

namespace spillway {

// Bytes moved over one edge, between two tiers. A transfer is counted when it completes.
struct Traffic {
  uint64_t read_bytes = 0;     // towards the device: NVMe→pinned, or pinned→device
  uint64_t written_bytes = 0;  // away from the device: pinned→NVMe, or device→pinned
};

// Room used in one tier: bytes of frames or, on NVMe, of extents.
struct Occupancy {
  uint64_t now_bytes = 0;
  uint64_t peak_bytes = 0;
};

// How steps follow plans (EngineOptions::plan_steps). The first Stats that shows a plan's bounds
// computes them, which takes up to half as long as planning (0.2 s of CPU for 10,000 tiles, 2 s for
// a million). If there is no memory for that, they are zero.
struct PlanStats {
  uint64_t plans = 0;  // plans made
  uint64_t steps = 0;  // steps that followed a plan from their first transfer to their last
  // Leases of steps with a plan that were served on demand instead of by the plan's transfers,
  // because another caller was behind or the tile had had to leave.
  uint64_t pulled = 0;
  uint64_t deviations = 0;  // times a plan was abandoned: the step differed, or something failed
  // For the plan that the last step followed to its end: the bytes that its transfers moved in the
  // last step since the plan was taken up whose transfers have all begun (zeros if there is none
  // yet), the bytes that the plan moves a step, and a lower bound of the bytes that any schedule
  // within the budgets moves if that step repeats (src/plan/MODEL.md). `planned_bytes` and
  // `bytes_bound` are over all edges. Zeros if the last step followed no plan.
  Traffic nvme;
  Traffic pinned;
  uint64_t planned_bytes = 0;
  uint64_t bytes_bound = 0;
  uint64_t nvme_bytes_bound = 0;  // the lower bound over the NVMe edge alone
  // For the last step, in seconds; zeros if no plan was made for it. `time_bound_seconds` is a
  // lower bound of its time, given the time that it computed between its leases (commits left out)
  // and the rates that links, copies and checksums have sustained in this run, or have reached in
  // this step if it used them only briefly (src/plan/MODEL.md).
  // `compute_seconds` is the computing alone. `transfer_seconds` is the lower bound if computing
  // took no time.
  double time_bound_seconds = 0;
  double compute_seconds = 0;
  double transfer_seconds = 0;
  uint64_t moved_bytes() const {  // over all edges
    return nvme.read_bytes + nvme.written_bytes + pinned.read_bytes + pinned.written_bytes;
  }
  std::string not_planned;  // why no plan can be followed after the last step; else empty
};

// A folder of the store, and the rates that a calibration measured of its drive (Calibration). New
// pages go to the drives in proportion to 1 / (1 / read rate + 1 / write rate), or in equal shares
// if a drive was not measured.
struct DriveStats {
  std::string folder;                // as in EngineOptions::store
  double read_bytes_per_second = 0;  // zeros: not measured
  double write_bytes_per_second = 0;
};

struct EngineStats {
  Traffic nvme;                              // between NVMe and pinned memory
  Traffic pinned;                            // between pinned memory and the device
  std::array<Traffic, kNumRoles> role_nvme;  // by Role; their sum is `nvme`

  std::array<Occupancy, kNumTiers> tiers;  // by Tier
  // By Role, then Tier. On NVMe a tile counts as a frame of its own here, although the store puts
  // small tiles together and `tiers` has the store's own room: the roles may add up to more.
  std::array<std::array<Occupancy, kNumTiers>, kNumRoles> role_tiers;

  uint64_t acquires = 0;         // leases granted
  uint64_t acquire_waits = 0;    // waits of callers for a lease, and of commits for their writes
  double stall_seconds = 0;      // the callers' time in these waits, added up
  double io_seconds = 0;         // wall time with at least one transfer in flight
  double hidden_seconds = 0;     // the part of io_seconds during which no caller was blocked
  uint64_t prefetches = 0;       // tiles brought in ahead of declared uses
  uint64_t prefetch_wasted = 0;  // of these, tiles evicted before they were used
  uint64_t commits = 0;
  PlanStats plan;
  Placement placement = {};  // EngineOptions::placement

  // What the machine could not provide, or is wrong with the store and ended no call, as text
  // ("io_uring unavailable (EPERM): using threads").
  // Each entry is announced once (EngineOptions::announce).
  std::vector<std::string> fallbacks;
  std::string io_engine;           // "uring" or "posix"; empty without a store
  std::string device;              // "host" or the GPU's name
  std::vector<DriveStats> drives;  // in the order of EngineOptions::store; empty without a store

  // The share of transfer time that compute hid; 1 if nothing moved.
  double overlap() const { return io_seconds > 0 ? hidden_seconds / io_seconds : 1.0; }
};

}  // namespace spillway

#endif  // SPILLWAY_STATS_H_
