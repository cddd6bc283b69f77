// SPDX-License-Identifier: Apache-2.0

#include "src/engine/caller_waits.h"

#include <utility>

#include "src/base/interrupt.h"

namespace spillway::engine {

void CallerWaits::Answer(Action action, tiers::EventHandle arrival) {
  Request& request = *requests_.at(action.ticket);
  request.is_answered = true;
  request.is_leased = action.kind == Action::Kind::kGrant;
  request.was_stored = action.was_stored;
  request.status = std::move(action.status);
  request.arrival = arrival;
  request.answered_.NotifyAll();
}

bool CallerWaits::Wait(Request* request, base::Mutex* mu, const std::function<void()>& unlocked) {
  ++num_waits_;
  SetBlocked(+1);
  if (unlocked) {
    mu->Unlock();
    unlocked();
    mu->Lock();
  }
  bool interrupted = false;
  while (!request->is_answered && !interrupted)
    interrupted = base::WaitOrInterrupt(&request->answered_, mu);
  SetBlocked(-1);
  if (interrupted && request->is_answered) base::PutBackInterrupt();
  return request->is_answered;
}

void CallerWaits::WaitOut(Request* request, base::Mutex* mu) {
  SetBlocked(+1);
  while (!request->is_answered) request->answered_.Wait(mu);
  SetBlocked(-1);
  if (!absl::IsCancelled(request->status)) base::PutBackInterrupt();
}

}  // namespace spillway::engine
