// SPDX-License-Identifier: Apache-2.0
//
// A trainer that computes nothing. Through the public engine it leases tiles in random order. Its
// kernels read, check and write every byte of each tile and take a random time. The trainer records
// what every tile must hold, so that it finds bytes that are misplaced, late or lost.
//
// It leases on the device with and without streams, several tiles at a time, and in pinned memory.
// It declares uses that come and some that do not, evicts, discards and commits. At the end it
// closes the engine and checks that the store is at the last commit.

#ifndef SPILLWAY_TESTS_ENGINE_SYNTHETIC_TRAINER_H_
#define SPILLWAY_TESTS_ENGINE_SYNTHETIC_TRAINER_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "spillway/engine.h"

namespace spillway::test {

struct SyntheticOptions {
  std::string store;  // a folder that does not exist yet
  Device device = Device::Host();
  uint64_t seed = 1;  // of the order, the sizes, the times and the bytes
  int64_t steps = 20;
  int64_t uses_per_step = 40;
  uint64_t most_tile_bytes = 96 * kKiB;  // budgets follow: a few such tiles, less than the state
  int64_t most_microseconds = 300;       // longest time of a kernel
};

struct SyntheticResult {
  uint64_t kernels = 0;
  uint64_t bytes_checked = 0;
  uint64_t commits = 0;
  EngineStats stats;
};

// Runs the trainer. Returns DataLoss if a byte was wrong, or the engine's error if a call failed.
absl::StatusOr<SyntheticResult> RunSyntheticTrainer(const SyntheticOptions& options);

}  // namespace spillway::test

#endif  // SPILLWAY_TESTS_ENGINE_SYNTHETIC_TRAINER_H_
