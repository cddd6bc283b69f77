// SPDX-License-Identifier: Apache-2.0

#include "src/base/interrupt.h"

#include <chrono>
#include <functional>
#include <utility>

#include "spillway/interrupt.h"

namespace spillway {
namespace {

struct Interrupt {
  std::function<bool()> check;
  std::function<void()> put_back;
  int held_off = 0;  // number of Uninterrupted objects of the thread
};
thread_local Interrupt this_threads;

}  // namespace

void SetInterrupt(std::function<bool()> check, std::function<void()> put_back) {
  this_threads.check = std::move(check);
  this_threads.put_back = std::move(put_back);
}

namespace base {

bool WaitOrInterrupt(CondVar* condition, Mutex* mutex) {
  constexpr std::chrono::milliseconds kBetweenChecks(50);
  if (!this_threads.check || this_threads.held_off > 0) {
    condition->Wait(mutex);
    return false;
  }
  if (condition->WaitUntil(mutex, std::chrono::steady_clock::now() + kBetweenChecks)) return false;
  mutex->Unlock();
  const bool interrupted = TakeInterrupt();
  mutex->Lock();
  return interrupted;
}

void PutBackInterrupt() {
  if (this_threads.put_back) this_threads.put_back();
}

bool TakeInterrupt() {
  if (!this_threads.check || this_threads.held_off > 0) return false;
  const std::function<bool()> check = this_threads.check;  // a copy, as it may set another
  return check();
}

Uninterrupted::Uninterrupted() { ++this_threads.held_off; }
Uninterrupted::~Uninterrupted() { --this_threads.held_off; }

}  // namespace base
}  // namespace spillway
