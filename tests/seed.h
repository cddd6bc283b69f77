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

// How a seed is printed: the assignment that repeats the test, or the round, that had it.
inline std::string SeedLine(uint64_t seed) { return "SPILLWAY_TEST_SEED=" + std::to_string(seed); }

// SPILLWAY_TEST_SEED, or where it is not set a number drawn anew. Prints it, so that a test which
// asks once has it in its own output. A value that is no number below 2^64 fails the test.
inline uint64_t Seed() {
  uint64_t seed = std::random_device{}();
  if (const char* const given = std::getenv("SPILLWAY_TEST_SEED")) {
    const std::string_view text(given);
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
    if (error != std::errc() || end != text.data() + text.size()) {
      ADD_FAILURE() << "SPILLWAY_TEST_SEED is '" << text << "': want a number from 0 to 2^64 - 1";
    }
  }
  // Flushed, because a test that aborts leaves nothing that is buffered.
  std::cout << SeedLine(seed) << std::endl;
  return seed;
}

}  // namespace spillway::test

#endif  // SPILLWAY_TESTS_SEED_H_
