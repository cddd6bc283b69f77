// SPDX-License-Identifier: Apache-2.0
//
// The requests for which callers wait until the pager has answered them, and the meter of blocked
// time and transfer time. Pager decides the answers; Mover passes them on.

#ifndef SPILLWAY_ENGINE_CALLER_WAITS_H_
#define SPILLWAY_ENGINE_CALLER_WAITS_H_

#include <cstdint>
#include <functional>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "src/base/mutex.h"
#include "src/engine/overlap_meter.h"
#include "src/engine/pager/action.h"
#include "tiers/device_runtime.h"

namespace spillway::engine {

// Externally synchronised by one lock, which the waits release while they block.
class CallerWaits {
 public:
  // A caller's request to the pager. It must stay alive until it is answered.
  class Request {
   public:
    explicit Request(CallerWaits* waits) : ticket(waits->next_ticket_++), waits_(*waits) {
      waits_.requests_[ticket] = this;
    }
    ~Request() { waits_.requests_.erase(ticket); }
    Request(const Request&) = delete;
    Request& operator=(const Request&) = delete;

    const Ticket ticket;
    bool is_answered = false;
    // Whether the lease is held. It may be held although `status` is not ok; it must be ended then.
    bool is_leased = false;
    bool was_stored = false;  // see Action
    absl::Status status;
    tiers::EventHandle arrival;

   private:
    friend class CallerWaits;
    CallerWaits& waits_;
    base::CondVar answered_;
  };

  // Delivers `action`, a grant or a failure, to its request. The status is moved into the request,
  // so that it is destroyed on the caller's thread.
  void Answer(Action action, tiers::EventHandle arrival);
  // Waits for the answer. Returns true if the request is answered, and false if the caller's thread
  // was interrupted before that. The caller then withdraws the request and calls WaitOut, which
  // returns soon. First calls `unlocked`, if it is not empty, without the lock; the caller counts
  // as blocked meanwhile.
  bool Wait(Request* request, base::Mutex* mu, const std::function<void()>& unlocked)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void WaitOut(Request* request, base::Mutex* mu) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  // Records whether transfers are in flight from now on.
  void SetMoving(bool moving) {
    if (moving != meter_.moving())
      meter_.Set(OverlapMeter::TimePoint::clock::now(), moving, meter_.blocked());
  }

  uint64_t num_waits() const { return num_waits_; }
  // The meter, counted up to now.
  const OverlapMeter& meter() {
    SetBlocked(0);
    return meter_;
  }

 private:
  void SetBlocked(int more) {
    meter_.Set(OverlapMeter::TimePoint::clock::now(), meter_.moving(), meter_.blocked() + more);
  }

  absl::flat_hash_map<Ticket, Request*> requests_;
  Ticket next_ticket_ = 1;
  uint64_t num_waits_ = 0;
  OverlapMeter meter_;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_CALLER_WAITS_H_
