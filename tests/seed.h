// SPDX-License-Identifier: Apache-2.0
//
// The seed of a random test: SPILLWAY_TEST_SEED repeats a run that printed it.
//
//   const uint64_t first = test::Seed();
//   for (uint64_t seed = first; seed != first + 30; ++seed) {
//     SCOPED_TRACE(test::SeedLine(seed));
//     std::mt19937_64 random(seed);  // all that is random in this round follows from its seed
//
// tests/seed.py does the same for Python.

#ifndef SPILLWAY_TESTS_SEED_H_
#define SPILLWAY_TESTS_SEED_H_

#include <gtest/gtest.h>

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <random>
#include <string>
#include <string_view>
#include <system_error>

namespace spillway::test {

// Returns a seed as it is printed: the assignment that repeats the test, or the round, that used
// it.
inline std::string SeedLine(uint64_t seed) { return "SPILLWAY_TEST_SEED=" + std::to_string(seed); }

// Returns SPILLWAY_TEST_SEED or, if it is not set, a random number. Prints it, so that the output
// of a test that calls this once contains it. A value that is not a number below 2^64 fails the
// test.
inline uint64_t Seed() {
  uint64_t seed = std::random_device{}();
  if (const char* const given = std::getenv("SPILLWAY_TEST_SEED")) {
    const std::string_view text(given);
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
    if (error != std::errc() || end != text.data() + text.size()) {
      ADD_FAILURE() << "SPILLWAY_TEST_SEED is '" << text << "': want a number from 0 to 2^64 - 1";
    }
  }
  // Flushes, because a test that aborts loses buffered output.
  std::cout << SeedLine(seed) << std::endl;
  return seed;
}

}  // namespace spillway::test

#endif  // SPILLWAY_TESTS_SEED_H_
