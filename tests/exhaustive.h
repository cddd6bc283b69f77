// SPDX-License-Identifier: Apache-2.0
//
// How much a test that takes a sample should try: everything in the `slow` run of the same program
// (spillway_exhaustive_test in tools/cmake/SpillwayTests.cmake); a third of the sample, and of a
// grid of numbers one point, where a sanitizer makes it several times slower and where
// SPILLWAY_TEST_ONE_POINT says so: tools/checks/stress runs it many times, each with its own seed.
// There a third of the tests with parameters and of those that run the command is run; under a
// sanitizer, half or a third of those that run the command (main.cc).

#ifndef SPILLWAY_TESTS_EXHAUSTIVE_H_
#define SPILLWAY_TESTS_EXHAUSTIVE_H_

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <random>
#include <source_location>
#include <vector>

#include "tests/seed.h"

#if defined(__has_feature)
#define SPILLWAY_FINDS_RACES __has_feature(thread_sanitizer)
#define SPILLWAY_IS_SANITIZED (__has_feature(address_sanitizer) || SPILLWAY_FINDS_RACES)
#else
#define SPILLWAY_FINDS_RACES 0
#define SPILLWAY_IS_SANITIZED 0
#endif

namespace spillway {

inline bool TriesOnePoint() {
  static const bool one = std::getenv("SPILLWAY_TEST_ONE_POINT") != nullptr;
  return one || SPILLWAY_IS_SANITIZED;
}

// A sample is one in so many of what it is elsewhere.
inline unsigned SampleShare() { return TriesOnePoint() ? 3 : 1; }

inline uint64_t GridSeed() {
  static const uint64_t seed = test::Seed();
  return seed;
}

// Which of `count` values of one dimension of a grid is tried. The line of the dimension is part of
// the draw, so that two dimensions do not go together.
inline size_t PointOf(uint64_t seed, uint32_t line, size_t count) {
  std::seed_seq mixed{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32), line};
  std::mt19937 random(mixed);
  return random() % count;
}

// One dimension of a grid of numbers: all values or, where one point is tried, one of them. The
// seed is the same for all dimensions, so that one line repeats a run.
template <typename T>
std::vector<T> GridOf(std::vector<T> values,
                      std::source_location where = std::source_location::current()) {
  if (!TriesOnePoint()) return values;
  return {values[PointOf(GridSeed(), where.line(), values.size())]};
}

// A series of cases that take long under a sanitizer: all or, where one point is tried, every
// SampleShare()-th from a place that the seed says.
template <typename T>
std::vector<T> SampleOf(const std::vector<T>& all,
                        std::source_location where = std::source_location::current()) {
  std::vector<T> sample;
  const unsigned share = SampleShare();
  for (size_t i = PointOf(GridSeed(), where.line(), share); i < all.size(); i += share)
    sample.push_back(all[i]);
  return sample;
}

// Where to begin with a series of which every SampleShare()-th is tried: 0, or by the seed.
inline int SampleBegin() {
  return TriesOnePoint() ? static_cast<int>(test::Seed() % SampleShare()) : 0;
}

inline bool IsExhaustive() { return std::getenv("SPILLWAY_EXHAUSTIVE") != nullptr; }

}  // namespace spillway

#endif  // SPILLWAY_TESTS_EXHAUSTIVE_H_
