// SPDX-License-Identifier: Apache-2.0
//
// Whether this process is a fork of the one that made an object. Threads do not come along when a
// process forks, so an object with threads is of no use to the child.

#ifndef SPILLWAY_BASE_FORKS_H_
#define SPILLWAY_BASE_FORKS_H_

#include <cstdint>

namespace spillway::base {

// Counts forks from the first call on: a child has one more than its parent had.
uint64_t NumForks();

// Made by the process that made the object.
class ForkGuard {
 public:
  bool is_forked() const { return NumForks() != forks_; }

 private:
  uint64_t forks_ = NumForks();
};

}  // namespace spillway::base

#endif  // SPILLWAY_BASE_FORKS_H_
