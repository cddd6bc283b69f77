// SPDX-License-Identifier: Apache-2.0
//
// How much a test that takes a sample should try: everything in the `slow` run of the same program
// (spillway_exhaustive_test in tools/cmake/SpillwayBuild.cmake); a third of the sample where a
// sanitizer makes it several times slower.

#ifndef SPILLWAY_TESTS_EXHAUSTIVE_H_
#define SPILLWAY_TESTS_EXHAUSTIVE_H_

#include <cstdlib>

#if defined(__has_feature)
#define SPILLWAY_IS_SANITIZED (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#else
#define SPILLWAY_IS_SANITIZED 0
#endif

namespace spillway {

inline constexpr unsigned kSampleShare = SPILLWAY_IS_SANITIZED ? 3 : 1;  // one in so many

inline bool IsExhaustive() { return std::getenv("SPILLWAY_EXHAUSTIVE") != nullptr; }

}  // namespace spillway

#endif  // SPILLWAY_TESTS_EXHAUSTIVE_H_
