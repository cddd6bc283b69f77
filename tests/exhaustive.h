// SPDX-License-Identifier: Apache-2.0
//
// How much a test that takes a sample should try: everything in the `slow` run of the same program
// (spillway_exhaustive_test in tools/cmake/SpillwayTests.cmake); a third of the sample, and one
// point of a grid of numbers, where a sanitizer makes it several times slower.

#ifndef SPILLWAY_TESTS_EXHAUSTIVE_H_
#define SPILLWAY_TESTS_EXHAUSTIVE_H_

#include <cstdlib>
#include <vector>

#include "tests/seed.h"

#if defined(__has_feature)
#define SPILLWAY_IS_SANITIZED (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#else
#define SPILLWAY_IS_SANITIZED 0
#endif

namespace spillway {

inline constexpr unsigned kSampleShare = SPILLWAY_IS_SANITIZED ? 3 : 1;  // one in so many

// One dimension of a grid of numbers: all values, or one of them, by the seed, under a sanitizer.
template <typename T>
std::vector<T> GridOf(std::vector<T> values) {
  if (!SPILLWAY_IS_SANITIZED) return values;
  return {values[test::Seed() % values.size()]};
}

// Where to begin with a series of which every kSampleShare-th is tried: 0, or by the seed.
inline int SampleBegin() {
  return kSampleShare == 1 ? 0 : static_cast<int>(test::Seed() % kSampleShare);
}

inline bool IsExhaustive() { return std::getenv("SPILLWAY_EXHAUSTIVE") != nullptr; }

}  // namespace spillway

#endif  // SPILLWAY_TESTS_EXHAUSTIVE_H_
