// SPDX-License-Identifier: Apache-2.0
//
// The floating-point environment of arithmetic whose bits must not depend on the thread that
// computes it.

#ifndef SPILLWAY_BASE_DEFAULT_FLOATS_H_
#define SPILLWAY_BASE_DEFAULT_FLOATS_H_

#include <cfenv>

namespace spillway::base {

// Gives the thread the default floating-point environment, and gives the caller's back at the end.
// A library that flushes denormals to zero, for example, does so in one thread only. Without this,
// an element's bits would depend on the thread that computes it.
class DefaultFloats {
 public:
  DefaultFloats() {
    std::fegetenv(&before_);
    std::fesetenv(FE_DFL_ENV);
  }
  ~DefaultFloats() { std::fesetenv(&before_); }
  DefaultFloats(const DefaultFloats&) = delete;
  DefaultFloats& operator=(const DefaultFloats&) = delete;

 private:
  std::fenv_t before_;
};

}  // namespace spillway::base

#endif  // SPILLWAY_BASE_DEFAULT_FLOATS_H_
