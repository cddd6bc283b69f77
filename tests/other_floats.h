// SPDX-License-Identifier: Apache-2.0
//
// A floating-point environment that is not the default, for tests of results that must not depend
// on the caller's.

#ifndef SPILLWAY_TESTS_OTHER_FLOATS_H_
#define SPILLWAY_TESTS_OTHER_FLOATS_H_

#include <cfenv>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace spillway::test {

// Makes this thread round down and flush denormals to zero, where the processor can, until the
// object is destroyed.
class OtherFloats {
 public:
  OtherFloats() {
    std::fegetenv(&before_);
    std::fesetround(FE_DOWNWARD);
#if defined(__SSE__)
    _MM_SET_FLUSH_ZERO_MODE(_MM_FLUSH_ZERO_ON);
#endif
  }
  ~OtherFloats() { std::fesetenv(&before_); }
  OtherFloats(const OtherFloats&) = delete;
  OtherFloats& operator=(const OtherFloats&) = delete;

 private:
  std::fenv_t before_;
};

}  // namespace spillway::test

#endif  // SPILLWAY_TESTS_OTHER_FLOATS_H_
