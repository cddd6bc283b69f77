// SPDX-License-Identifier: Apache-2.0
//
// The room that a plan has left, where its operations take any frame: what it has in each tier at
// each position of the period to come, and what operations before their position have taken or
// given back.

#ifndef SPILLWAY_ENGINE_FOLLOWING_PLAN_ROOM_H_
#define SPILLWAY_ENGINE_FOLLOWING_PLAN_ROOM_H_

#include <array>
#include <cstdint>
#include <functional>
#include <queue>
#include <set>
#include <vector>

#include "src/engine/following/step_plan.h"
#include "src/plan/room_tree.h"

namespace spillway::engine {

class PlanRoom {
 public:
  using Count = uint64_t;  // an event, or an operation, counted on from the first period's first

  // Before the first event; `step` must outlive it.
  explicit PlanRoom(const StepPlan& step);
  // Back there.
  void Restart();

  // The plan is at the event: what was taken ahead until there is where the plan has it.
  void PassTo(Count event);
  // Whether the operation's frame fits beside all that the plan has from now until its position.
  bool Has(Count op);
  // The operation has begun, or counts as over without.
  void Begun(Count op);

 private:
  using Position = uint64_t;
  // Bytes that an operation has taken, or given back, before its position.
  struct Ahead {
    Position end = 0;    // its position
    Position begin = 0;  // where the plan was when it was taken, or given back
    Tier tier = Tier::kPinned;
    bool taken = false;
    uint64_t bytes = 0;
    friend bool operator>(const Ahead& a, const Ahead& b) { return a.end > b.end; }
  };

  // An operation whose frame does not fit: until something has changed, none fits that is as large
  // and of no lower position.
  struct Unfit {
    Position position = ~Position{0};
    uint64_t bytes = 0;
  };

  static size_t At(Tier tier) { return tier == Tier::kDevice ? 0 : 1; }
  const plan::Op& OpAt(Count op) const { return step_.plan.ops[op % step_.plan.ops.size()]; }
  Position PositionOf(Count op) const;
  uint64_t FrameBytes(plan::TileIndex tile) const;
  uint32_t InPeriod(Position position) const {
    return static_cast<uint32_t>(position % num_positions_);
  }
  // Writes it down, or takes that back.
  void Apply(const Ahead& ahead, bool taken);

  const StepPlan& step_;
  const uint64_t num_positions_;
  Position now_ = 0;
  std::vector<plan::RoomTree> room_;  // by tier: bytes at each position
  std::array<Unfit, 2> unfit_;        // by tier: the last that was found
  std::priority_queue<Ahead, std::vector<Ahead>, std::greater<>> ahead_;
  std::multiset<Position> begins_;  // of `ahead_`
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_FOLLOWING_PLAN_ROOM_H_
