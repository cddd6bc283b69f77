// SPDX-License-Identifier: Apache-2.0
//
// A trainer that computes nothing: through the public engine it leases tiles in random order, and
// its kernels read, check and write every byte of each, in random time. What every tile must hold
// is known at any moment, so that a byte that came from elsewhere, came late or got lost is found.
//
// It leases in the device with and without streams, several at a time, and in pinned memory; it
// declares uses that come and some that do not, evicts, discards, commits, and at the end closes
// the engine and looks whether its store is at the last commit.

#ifndef SPILLWAY_TESTS_ENGINE_SYNTHETIC_TRAINER_H_
#define SPILLWAY_TESTS_ENGINE_SYNTHETIC_TRAINER_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "spillway/engine.h"

namespace spillway::test {

struct SyntheticOptions {
  std::string store;  // a folder that is not there yet
  Device device = Device::Host();
  uint64_t seed = 1;  // of the order, the sizes, the times and the bytes
  int64_t steps = 20;
  int64_t uses_per_step = 40;
  uint64_t most_tile_bytes = 96 * kKiB;  // budgets follow: a few tiles, less than the state
  int64_t most_microseconds = 300;       // of a kernel's time
};

struct SyntheticResult {
  uint64_t kernels = 0;
  uint64_t bytes_checked = 0;
  uint64_t commits = 0;
  EngineStats stats;
};

// DataLoss if a byte was wrong; else what the engine says.
absl::StatusOr<SyntheticResult> RunSyntheticTrainer(const SyntheticOptions& options);

}  // namespace spillway::test

#endif  // SPILLWAY_TESTS_ENGINE_SYNTHETIC_TRAINER_H_
