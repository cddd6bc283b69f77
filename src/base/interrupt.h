// SPDX-License-Identifier: Apache-2.0
//
// Waits that this thread's interrupt (spillway/interrupt.h) may end.

#ifndef SPILLWAY_BASE_INTERRUPT_H_
#define SPILLWAY_BASE_INTERRUPT_H_

#include "absl/base/thread_annotations.h"
#include "src/base/mutex.h"

namespace spillway::base {

// As condition->Wait(mutex), but returns after a while at the latest if the thread has an
// interrupt: then that was asked, without the mutex, and the result is what it said. Whoever does
// not end the call then, because the wait is over, calls PutBackInterrupt.
bool WaitOrInterrupt(CondVar* condition, Mutex* mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
void PutBackInterrupt();

// Nothing ends a wait of the thread while there is one.
class Uninterrupted {
 public:
  Uninterrupted();
  ~Uninterrupted();
  Uninterrupted(const Uninterrupted&) = delete;
  Uninterrupted& operator=(const Uninterrupted&) = delete;
};

}  // namespace spillway::base

#endif  // SPILLWAY_BASE_INTERRUPT_H_
