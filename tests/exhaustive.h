// SPDX-License-Identifier: Apache-2.0
//
// How many cases a test that takes a sample tries. The `slow` run of the same program tries all
// (spillway_exhaustive_test in tools/cmake/SpillwayTests.cmake). A third of the sample, and one
// point of a grid of numbers, is tried under a sanitizer, which makes a test several times slower,
// and if SPILLWAY_TEST_ONE_POINT is set. tools/checks/stress sets it, because it runs a test many
// times, each time with another seed. The suite sets it for tests that would take minutes.
//
// If SPILLWAY_TEST_ONE_POINT is set, a third of the tests with parameters and of the tests that run
// the command is run (main.cc).

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
#define SPILLWAY_IS_SANITIZED (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#define SPILLWAY_IS_THREAD_SANITIZED __has_feature(thread_sanitizer)
#else
#define SPILLWAY_IS_SANITIZED 0
#define SPILLWAY_IS_THREAD_SANITIZED 0
#endif

namespace spillway {

inline bool TriesOnePoint() {
  static const bool one = std::getenv("SPILLWAY_TEST_ONE_POINT") != nullptr;
  return one || SPILLWAY_IS_SANITIZED;
}

// Returns n if one in n cases of a sample is tried.
inline unsigned SampleShare() { return TriesOnePoint() ? 3 : 1; }

inline uint64_t GridSeed() {
  static const uint64_t seed = test::Seed();
  return seed;
}

// Returns which of `count` values of one dimension of a grid is tried. The dimension's line number
// is part of the draw, so that dimensions are drawn independently.
inline size_t PointOf(uint64_t seed, uint32_t line, size_t count) {
  std::seed_seq mixed{static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32), line};
  std::mt19937 random(mixed);
  return random() % count;
}

// Returns the values of one dimension of a grid of numbers: all or, if one point is tried, one of
// them. The seed is the same for all dimensions, so that one seed line repeats a run.
template <typename T>
std::vector<T> GridOf(std::vector<T> values,
                      std::source_location where = std::source_location::current()) {
  if (!TriesOnePoint()) return values;
  return {values[PointOf(GridSeed(), where.line(), values.size())]};
}

// Returns the cases to try of a series that takes long under a sanitizer: all or, if one point is
// tried, every SampleShare()-th from a start that the seed gives.
template <typename T>
std::vector<T> SampleOf(const std::vector<T>& all,
                        std::source_location where = std::source_location::current()) {
  if (!TriesOnePoint()) return all;
  std::vector<T> sample;
  const unsigned share = SampleShare();
  for (size_t i = PointOf(GridSeed(), where.line(), share); i < all.size(); i += share)
    sample.push_back(all[i]);
  return sample;
}

// Returns the start in a series of which every SampleShare()-th case is tried: 0 or, if one point
// is tried, a number from the seed.
inline int SampleBegin() {
  return TriesOnePoint() ? static_cast<int>(test::Seed() % SampleShare()) : 0;
}

inline bool IsExhaustive() { return std::getenv("SPILLWAY_EXHAUSTIVE") != nullptr; }

}  // namespace spillway

#endif  // SPILLWAY_TESTS_EXHAUSTIVE_H_
