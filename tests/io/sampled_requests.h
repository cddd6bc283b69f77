// SPDX-License-Identifier: Apache-2.0
//
// A sample of a run's requests, for tests that repeat a run and inject a fault into one request
// each time.

#ifndef SPILLWAY_TESTS_IO_SAMPLED_REQUESTS_H_
#define SPILLWAY_TESTS_IO_SAMPLED_REQUESTS_H_

#include <cstdint>
#include <limits>
#include <random>
#include <vector>

#include "absl/time/time.h"
#include "io/faulty_io_engine.h"
#include "tests/exhaustive.h"

namespace spillway::io {

// A fault that matches every request of `op` and changes nothing, so that faults_met() counts them.
inline Fault CountOnly(IoOp op) {
  return {.kind = Fault::Kind::kDelay,
          .op = op,
          .count = std::numeric_limits<uint64_t>::max(),
          .delay = absl::ZeroDuration()};
}

// Splits a run of `requests` requests into equal parts and returns one number in each. Runs differ
// slightly in length, so a repeated run may end before the last number.
inline std::vector<uint64_t> SampledRequests(uint64_t requests, std::mt19937_64& random) {
  const uint64_t parts = TriesOnePoint() ? 1 : 4;
  std::vector<uint64_t> sampled;
  for (uint64_t part = 0; part < parts; ++part) {
    const uint64_t first = requests * part / parts, end = requests * (part + 1) / parts;
    if (first < end) sampled.push_back(first + random() % (end - first));
  }
  return sampled;
}

}  // namespace spillway::io

#endif  // SPILLWAY_TESTS_IO_SAMPLED_REQUESTS_H_
