// SPDX-License-Identifier: Apache-2.0
//
// The room that a plan leaves free, for plans whose operations take any frame. It adds up the bytes
// that the plan has in each tier at each position of the coming period, and the bytes that
// operations have taken or given back ahead of their positions.

#ifndef SPILLWAY_ENGINE_FOLLOWING_PLAN_ROOM_H_
#define SPILLWAY_ENGINE_FOLLOWING_PLAN_ROOM_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "src/base/heap.h"
#include "src/engine/following/step_plan.h"
#include "src/plan/room_tree.h"
#include "src/plan/stop.h"

namespace spillway::engine {

class PlanRoom {
 public:
  using Count = uint64_t;  // an event or operation, counted from the first period's first

  // Starts before the first event. `step` must outlive it. Once `stop` is true, the constructor
  // returns soon, and the object must not be used.
  explicit PlanRoom(const StepPlan& step, plan::Stop stop = {});
  // Returns to before the first event.
  void Restart();

  // Moves the plan's position to the event. Bytes that were taken or given back ahead of positions
  // up to there no longer count apart, because the plan's own sums contain them.
  void PassTo(Count event);
  // Whether the operation's frame fits beside all that the plan has from now until its position.
  bool Has(Count op);
  // Records that the operation has begun, or counts as over without having begun.
  void Begun(Count op);

 private:
  using Position = uint64_t;
  // An operation that has taken or given back its bytes ahead of its position. Operations are in
  // the order of their positions.
  struct Ahead {
    Count op = 0;
    Position begin = 0;  // the plan's position when it did
    friend bool operator>(const Ahead& a, const Ahead& b) { return a.op > b.op; }
  };

  // An operation whose frame does not fit. Until something changes, no operation fits that takes at
  // least as many bytes and has the same or a higher position.
  struct Unfit {
    Tier tier = Tier::kPinned;
    Position position = ~Position{0};
    uint64_t bytes = 0;
  };

  static size_t At(Tier tier) { return tier == Tier::kDevice ? 0 : 1; }
  Position PositionOf(Count op) const;
  uint64_t FrameBytes(plan::TileIndex tile) const;
  uint32_t InPeriod(Position position) const {
    return static_cast<uint32_t>(position % num_positions_);
  }
  // Counts the operation's bytes from `begin` up to its own position, or, if `undo`, no longer.
  void Apply(const Ahead& ahead, bool undo);
  // Ends the entry at the top of `ahead_`.
  void Pop();

  const StepPlan& step_;
  const uint64_t num_positions_;
  Position now_ = 0;
  std::vector<plan::RoomTree> room_;           // by tier: bytes at each position
  std::vector<plan::RoomTree> room_at_begin_;  // before the first event
  // By kind of operation but kDrop: the last one found.
  std::array<Unfit, static_cast<size_t>(plan::Transfer::kDrop)> unfit_;
  base::Heap<Ahead> ahead_;
  // The positions at which entries of `ahead_` begin, oldest first, and how many are left of each.
  std::deque<std::pair<Position, uint64_t>> begins_;
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_FOLLOWING_PLAN_ROOM_H_
