// SPDX-License-Identifier: Apache-2.0
//
// Executes a plan in virtual time, at the granularity of tiles, and checks that it is valid: frames
// do not overlap and stay within the budgets, every lease and every transfer finds the newest
// bytes, and no bytes that are still needed are lost. Tests use it as their oracle; comparisons use
// its seconds.

#ifndef SPILLWAY_PLAN_SIMULATE_H_
#define SPILLWAY_PLAN_SIMULATE_H_

#include <array>
#include <cstdint>

#include "absl/status/statusor.h"
#include "src/plan/plan.h"

namespace spillway::plan {

// Bytes per second of each link. NVMe's two links share one device, which moves `nvme` bytes per
// second in both directions together.
struct Rates {
  std::array<double, kNumLinks> link = {3e9, 1.5e9, 20e9, 20e9};
  double nvme = 3e9;
  // The rate of the transfer thread, which hashes the bytes that NVMe moves. The copies of the host
  // runtime count as links.
  double checksum = 10e9;

  double operator[](Transfer of) const { return link[static_cast<size_t>(of)]; }
};

struct SimulatedStep {
  double seconds = 0;
  LinkBytes bytes;
};

// Executes four periods of the plan, starting at its seam, and returns the last one. Its transfers
// count as its own even if they started during the period before. An Internal error names
// the first operation or event at which the plan is not valid, or says what is wrong at the seam.
absl::StatusOr<SimulatedStep> Simulate(const Trace& trace, const Plan& plan);

}  // namespace spillway::plan

#endif  // SPILLWAY_PLAN_SIMULATE_H_
