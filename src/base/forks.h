// SPDX-License-Identifier: Apache-2.0
//
// Detects that this process was forked from the process that made an object. A child process does
// not have the threads that the object started in its parent, so it cannot use such an object. And
// it must not keep what its parent holds by a descriptor, which the kernel would count as held
// until the child ends, too.

#ifndef SPILLWAY_BASE_FORKS_H_
#define SPILLWAY_BASE_FORKS_H_

#include <cstdint>

namespace spillway::base {

// Returns a number that is one higher in a child process than in its parent. Forks are counted from
// the first call on.
uint64_t NumForks();

// Member of an object. Records which process made the object.
class ForkGuard {
 public:
  bool is_forked() const { return NumForks() != forks_; }

 private:
  uint64_t forks_ = NumForks();
};

// Closes the descriptor in each child process that is forked from now on, until KeepInChildren.
// Call that before the descriptor is closed here, because its number may then be given to another.
void CloseInChildren(int fd);
void KeepInChildren(int fd);

}  // namespace spillway::base

#endif  // SPILLWAY_BASE_FORKS_H_
