// SPDX-License-Identifier: Apache-2.0
//
// Waits that the interrupt of the calling thread (spillway/interrupt.h) can end.

#ifndef SPILLWAY_BASE_INTERRUPT_H_
#define SPILLWAY_BASE_INTERRUPT_H_

#include "absl/base/thread_annotations.h"
#include "src/base/mutex.h"

namespace spillway::base {

// Waits as condition->Wait(mutex) does, and returns false. If the thread has an interrupt, the wait
// is short: if it ends without a notification, this calls the interrupt's check, with the mutex
// unlocked, and returns the check's result. A caller that gets true but does not end its call,
// because what it waited for has happened, must call PutBackInterrupt.
bool WaitOrInterrupt(CondVar* condition, Mutex* mutex) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex);
void PutBackInterrupt();

// For a call that waits otherwise, and is ended whenever this returns true: runs the check of the
// thread's interrupt, if there is one, and returns its result. Call it some twenty times a second.
bool TakeInterrupt();

// While a thread has an object of this class, its interrupt is not checked and ends no wait.
class Uninterrupted {
 public:
  Uninterrupted();
  ~Uninterrupted();
  Uninterrupted(const Uninterrupted&) = delete;
  Uninterrupted& operator=(const Uninterrupted&) = delete;
};

}  // namespace spillway::base

#endif  // SPILLWAY_BASE_INTERRUPT_H_
