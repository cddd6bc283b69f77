// SPDX-License-Identifier: Apache-2.0
//
// How fast the links of a machine are: what bounds of a step's seconds and simulations take.

#ifndef SPILLWAY_PLAN_RATES_H_
#define SPILLWAY_PLAN_RATES_H_

#include <array>

#include "src/plan/transfer.h"

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

}  // namespace spillway::plan

#endif  // SPILLWAY_PLAN_RATES_H_
