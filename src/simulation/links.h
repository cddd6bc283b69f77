// SPDX-License-Identifier: Apache-2.0
//
// When a transfer would end: the links of a machine, in virtual time. Each link carries one
// transfer after another. A tile's bytes on NVMe lie on all drives, so its transfer ends with the
// last drive's part. Reads and writes share each drive, and the threads that hash share one rate.

#ifndef SPILLWAY_SIMULATION_LINKS_H_
#define SPILLWAY_SIMULATION_LINKS_H_

#include <array>
#include <cstdint>
#include <random>
#include <vector>

#include "absl/status/status.h"
#include "src/plan/rates.h"
#include "src/plan/transfer.h"

namespace spillway::simulation {

// Rates in bytes per second.
struct Drive {
  double read = 3e9;
  double write = 1.5e9;
  double both = 3e9;  // reads and writes together, while both are in flight
  friend bool operator==(const Drive&, const Drive&) = default;
};

struct Machine {
  std::vector<Drive> drives = std::vector<Drive>(1);
  // Whether each drive holds bytes in proportion to its rates, as in a store that was calibrated.
  // If not, each holds the same share, and the slowest drive decides.
  bool is_calibrated = true;
  double copy_in = 20e9;       // pinned memory to the device
  double copy_out = 20e9;      // the device to pinned memory
  double checksum = 10e9;      // what NVMe moves is hashed by the CPU
  double latency_seconds = 0;  // from the start of an NVMe transfer until its first byte
  double jitter = 0;  // each transfer takes up to this share of its time longer, drawn by the seed
  uint64_t seed = 1;

  // InvalidArgument names the value that is not finite, or not above zero, and its limit.
  absl::Status Check() const;
  // The rates that a bound of a step's seconds takes: those of all drives together.
  plan::Rates Rates() const;
};

// A machine with one drive whose bounds take these rates. A link that was never used, whose rate is
// infinite, takes next to no time.
Machine MachineOf(const plan::Rates& rates);

// REQUIRES: machine.Check() is OK.
class Links {
 public:
  explicit Links(Machine machine);

  struct Span {
    double begin = 0, end = 0;  // seconds
  };
  // Carries a transfer that is requested at `now`. Calls come in the order of `now`.
  Span Carry(plan::Transfer transfer, uint64_t size_bytes, double now);

 private:
  double Jittered(double seconds);

  const Machine machine_;
  std::vector<double> shares_;                  // of a tile's bytes, by drive; they sum to one
  std::vector<std::array<double, 2>> free_at_;  // of each drive's reads and writes
  std::vector<double> drive_free_at_;           // of each drive, in both directions together
  std::array<double, 2> copy_free_at_ = {};     // in, out
  double hash_free_at_ = 0;
  std::mt19937_64 random_;
};

}  // namespace spillway::simulation

#endif  // SPILLWAY_SIMULATION_LINKS_H_
