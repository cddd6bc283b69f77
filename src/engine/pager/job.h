// SPDX-License-Identifier: Apache-2.0
//
// The pager's jobs: each is one request that goes forward as far as it can, whenever something has
// happened. Four lists hold them, in the order in which they were added.

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

using ClaimKey = std::pair<Tier, TileIndex>;  // a claim of the tile's on room in the tier

struct Job {
  enum class Kind : uint8_t { kAcquire, kEvict, kFlush, kPrefetch } kind = Kind::kAcquire;
  TileIndex tile = 0;
  Tier tier = Tier::kDevice;
  Access access = Access::kRead;
  Ticket ticket = kNoTicket;
  StreamId stream = kNoStream;
  uint64_t position = UseQueue::kNever;    // kPrefetch: of its use
  std::optional<ClaimKey> claim;           // kEvict: who gets the room
  bool sinks = false;                      // kEvict: goes on to the lowest tier
  std::optional<ClaimKey> awaits;          // the claim whose end it waits for
  absl::Status failure;                    // of its transfer, or of the claim that it awaited
  std::optional<PlanFollower::Count> use;  // kAcquire: of the plan that is followed
  bool pulled = false;                     // kAcquire: it does not wait for the plan
};

// What became of a job when it was advanced.
enum class Outcome : uint8_t { kWaiting, kProgress, kDone };

// Jobs do not move in memory.
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
  // Whether some were added since TakeHasNew.
  bool has_new() const { return has_new_; }
  bool TakeHasNew() { return std::exchange(has_new_, false); }

  // Whether a caller waits for the tile.
  bool IsAwaited(TileIndex tile) const {
    const List& acquires = of(Job::Kind::kAcquire);
    return std::any_of(acquires.begin(), acquires.end(),
                       [tile](const Job& job) { return job.tile == tile; });
  }
  // There will be no room: jobs that wait for the claim learn why.
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
