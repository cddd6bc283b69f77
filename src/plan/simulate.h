// SPDX-License-Identifier: Apache-2.0
//
// Carries out a plan in virtual time, tile by tile, and checks on the way that it is one: frames do
// not overlap and stay within the budgets, every lease and every transfer finds the newest bytes,
// and nothing that is wanted is lost. Tests take it as their oracle; comparisons take their seconds
// from it.

#ifndef SPILLWAY_PLAN_SIMULATE_H_
#define SPILLWAY_PLAN_SIMULATE_H_

#include <array>
#include <cstdint>

#include "absl/status/statusor.h"
#include "src/plan/plan.h"

namespace spillway::plan {

// Bytes per second of each link. NVMe's two share one device, which moves `nvme` in all.
struct Rates {
  std::array<double, kNumLinks> link = {3e9, 1.5e9, 20e9, 20e9};
  double nvme = 3e9;
  // Of the transfer thread, which hashes what NVMe moves; the host runtime's copies are links.
  double checksum = 10e9;

  double operator[](Transfer of) const { return link[static_cast<size_t>(of)]; }
};

struct SimulatedStep {
  double seconds = 0;
  double compute_seconds = 0;
  double stall_seconds = 0;  // an acquire waited
  LinkBytes bytes;
};

// Carries out `periods` of the plan, from its seam on; returns the last, in which transfers that
// ran ahead of it are counted as its own. Internal names the first operation or event at which the
// plan is not one.
absl::StatusOr<SimulatedStep> Simulate(const Trace& trace, const Plan& plan, const Rates& rates,
                                       int periods = 4);

}  // namespace spillway::plan

#endif  // SPILLWAY_PLAN_SIMULATE_H_
