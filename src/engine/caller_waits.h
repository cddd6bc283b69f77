// SPDX-License-Identifier: Apache-2.0
//
// Callers that wait until the pager has answered what they asked for, and for how long they do.

#ifndef SPILLWAY_ENGINE_CALLER_WAITS_H_
#define SPILLWAY_ENGINE_CALLER_WAITS_H_

#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "src/base/mutex.h"
#include "src/engine/overlap_meter.h"
#include "src/engine/pager/action.h"
#include "tiers/device_runtime.h"

namespace spillway::engine {

// Externally synchronised, by the lock that its waits give up meanwhile.
class CallerWaits {
 public:
  // What a caller asked the pager for. It lasts until the answer is there.
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
    bool is_leased = false;  // also with a status that is not ok: the lease is there and must end
    absl::Status status;
    tiers::EventHandle arrival;

   private:
    friend class CallerWaits;
    CallerWaits& waits_;
    base::CondVar answered_;
  };

  // `action` is a grant or a failure. The status becomes the caller's own: it ends on its thread.
  void Answer(Action action, tiers::EventHandle arrival);
  // Returns true when the request is answered. False: the caller's thread was interrupted before.
  // Then the caller withdraws what it asked for, and WaitOut returns soon.
  bool Wait(Request* request, base::Mutex* mu) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  void WaitOut(Request* request, base::Mutex* mu) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  // Whether transfers are in flight, from now on.
  void SetMoving(bool moving) {
    if (moving != meter_.moving())
      meter_.Set(OverlapMeter::TimePoint::clock::now(), moving, meter_.blocked());
  }

  uint64_t num_waits() const { return num_waits_; }
  // Up to now.
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
