// SPDX-License-Identifier: Apache-2.0
//
// A sample of a run's requests, for tests that let a fault befall one of them in each of several
// runs.

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

// Befalls every request of that op and changes nothing: faults_met() counts them.
inline Fault CountOnly(IoOp op) {
  return {.kind = Fault::Kind::kDelay,
          .op = op,
          .count = std::numeric_limits<uint64_t>::max(),
          .delay = absl::ZeroDuration()};
}

// One in each of as many equal parts of a run of so many requests. Runs differ by some: the last
// may find none left.
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
