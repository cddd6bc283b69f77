// SPDX-License-Identifier: Apache-2.0
//
// The pager's jobs. A job is one request; each run of the pump advances it as far as possible.
// There is one list for each kind of job, in the order in which the jobs were added. How a job
// advances is in arrivals.h, room.h and flush.h.

#ifndef SPILLWAY_ENGINE_PAGER_JOB_H_
#define SPILLWAY_ENGINE_PAGER_JOB_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <list>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "src/engine/following/plan_follower.h"
#include "src/engine/pager/action.h"
#include "src/engine/pager/use_queue.h"

namespace spillway::engine {

using ClaimKey = std::pair<Tier, TileIndex>;  // a claim on room in the tier, for the tile

struct Job {
  enum class Kind : uint8_t { kAcquire, kEvict, kFlush, kPrefetch } kind = Kind::kAcquire;
  TileIndex tile = 0;
  Tier tier = Tier::kDevice;
  Access access = Access::kRead;
  Ticket ticket = kNoTicket;
  StreamId stream = kNoStream;
  uint64_t position = UseQueue::kNever;    // kPrefetch: of its declared use
  std::optional<ClaimKey> claim;           // kEvict: the claim that gets the room
  bool sinks = false;                      // kEvict: continues to the lowest tier
  std::optional<ClaimKey> awaits;          // the claim that it waits for
  absl::Status failure;                    // of its transfer, or of the claim that it waited for
  std::optional<PlanFollower::Count> use;  // kAcquire: which of the tile's uses in the plan
  bool pulled = false;                     // kAcquire: is served on demand, not by the plan
  bool reserves = false;  // kAcquire: takes the tile's reserved frame, and no lease
};

// The result of advancing a job.
enum class Outcome : uint8_t { kWaiting, kProgress, kDone };

// All jobs. The address of a job does not change while the job exists.
class Jobs {
 public:
  using List = std::list<Job>;

  Job& Add(Job::Kind kind, TileIndex tile, Tier tier) {
    has_new_ = true;
    Job& job = of(kind).emplace_back();
    job.kind = kind;
    job.tile = tile;
    job.tier = tier;
    return job;
  }
  List& of(Job::Kind kind) { return lists_[static_cast<size_t>(kind)]; }
  const List& of(Job::Kind kind) const { return lists_[static_cast<size_t>(kind)]; }
  void Clear() {
    for (List& list : lists_) list.clear();
  }
  // Whether jobs were added since the last TakeHasNew.
  bool has_new() const { return has_new_; }
  bool TakeHasNew() { return std::exchange(has_new_, false); }

  // Whether a caller waits for a lease on the tile.
  bool IsAwaited(TileIndex tile) const {
    const List& acquires = of(Job::Kind::kAcquire);
    return std::any_of(acquires.begin(), acquires.end(),
                       [tile](const Job& job) { return job.tile == tile; });
  }
  // Records `why` as the failure of all jobs that wait for the claim, which gets no room.
  void FailClaim(ClaimKey claim, const absl::Status& why) {
    for (List& list : lists_) {
      for (Job& job : list) {
        if (job.awaits == claim) job.failure = why;
      }
    }
  }

 private:
  std::array<List, 4> lists_;  // by kind
  bool has_new_ = false;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_PAGER_JOB_H_
