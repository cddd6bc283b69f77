// SPDX-License-Identifier: Apache-2.0
//
// Whether a test that takes a sample should try everything instead: the `slow` run of the same
// program (spillway_exhaustive_test in tools/cmake/SpillwayBuild.cmake).

#ifndef SPILLWAY_TESTS_EXHAUSTIVE_H_
#define SPILLWAY_TESTS_EXHAUSTIVE_H_

#include <cstdlib>

namespace spillway {

inline bool IsExhaustive() { return std::getenv("SPILLWAY_EXHAUSTIVE") != nullptr; }

}  // namespace spillway

#endif  // SPILLWAY_TESTS_EXHAUSTIVE_H_
