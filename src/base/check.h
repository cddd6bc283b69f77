// SPDX-License-Identifier: Apache-2.0
//
// SPILLWAY_CHECK aborts the process if an invariant of this code is broken. It must not be used for
// input errors or for running out of room.

#ifndef SPILLWAY_BASE_CHECK_H_
#define SPILLWAY_BASE_CHECK_H_

#include <cstdio>
#include <cstdlib>

namespace spillway::base {

[[noreturn]] inline void CheckFailed(const char* file, int line, const char* condition) {
  std::fprintf(stderr, "%s:%d: broken invariant: %s\n", file, line, condition);
  std::abort();
}

}  // namespace spillway::base

// The condition must have no side effect.
#define SPILLWAY_CHECK(condition)     \
  ((condition) ? static_cast<void>(0) \
               : ::spillway::base::CheckFailed(__FILE__, __LINE__, #condition))

#endif  // SPILLWAY_BASE_CHECK_H_
