// SPDX-License-Identifier: Apache-2.0

#include "src/engine/following/plan_index.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "src/plan/retention.h"

namespace spillway::engine {
namespace {

using plan::TileIndex;
using plan::TraceEvent;

}  // namespace

PlanIndex IndexOf(const StepPlan& step) {
  const std::vector<plan::Op>& ops = step.plan.ops;
  const std::vector<TraceEvent>& events = step.trace.events;
  const size_t num_tiles = step.trace.tiles.size();
  PlanIndex index;
  index.first_op.resize(num_tiles + 1);
  index.first_use.resize(num_tiles + 1);
  index.releases.resize(num_tiles);
  std::vector<uint32_t> uses_until(events.size()), releases_until(events.size());  // by event
  index.op_number.resize(ops.size());
  index.ops.resize(ops.size());
  index.need_uses.resize(ops.size());
  index.need_releases.resize(ops.size());
  index.first_waiting.resize(ops.size() + 2);
  index.event_number.resize(events.size());
  for (const plan::Op& op : ops) {
    ++index.first_op[op.tile + 1];
    index.num_moves += plan::HasLink(op.kind) ? 1 : 0;
  }
  for (const TraceEvent& event : events) {
    index.first_use[event.tile + 1] += IsUse(event) ? 1 : 0;
  }
  std::partial_sum(index.first_op.begin(), index.first_op.end(), index.first_op.begin());
  std::partial_sum(index.first_use.begin(), index.first_use.end(), index.first_use.begin());
  index.use_event.resize(index.first_use.back());
  index.use_ops.resize(index.first_use.back());

  // Goes through events and operations in the plan's order.
  std::vector<uint32_t> uses_so_far(num_tiles), ops_so_far(num_tiles);
  uint32_t op = 0;
  const auto pass_ops = [&](uint64_t until) {
    for (; op < ops.size() && ops[op].position < until; ++op) {
      const TileIndex tile = ops[op].tile;
      index.op_number[op] = ops_so_far[tile]++;
      index.ops[index.first_op[tile] + index.op_number[op]] = op;
    }
  };
  for (uint32_t event = 0; event < events.size(); ++event) {
    pass_ops(plan::AtEvent(event));
    const TileIndex tile = events[event].tile;
    if (IsUse(events[event])) {
      const uint32_t use = index.first_use[tile] + uses_so_far[tile];
      index.use_event[use] = event;
      index.use_ops[use] = ops_so_far[tile];
      index.event_number[event] = uses_so_far[tile]++;
    } else {
      index.event_number[event] = index.releases[tile]++;
    }
    uses_until[event] = uses_so_far[tile];
    releases_until[event] = index.releases[tile];
  }
  pass_ops(std::numeric_limits<uint64_t>::max());

  for (op = 0; op < ops.size(); ++op) {
    if (ops[op].after != plan::kNever) {
      index.need_uses[op] = uses_until[ops[op].after & ~plan::kPeriodBefore];
      index.need_releases[op] = releases_until[ops[op].after & ~plan::kPeriodBefore];
    }
    for (const uint32_t wait : step.plan.WaitsOf(op))
      ++index.first_waiting[(wait & ~plan::kPeriodBefore) + 2];
  }
  std::partial_sum(index.first_waiting.begin(), index.first_waiting.end(),
                   index.first_waiting.begin());
  index.waiting.resize(index.first_waiting.back());
  for (op = 0; op < ops.size(); ++op) {
    for (const uint32_t wait : step.plan.WaitsOf(op))
      index.waiting[index.first_waiting[(wait & ~plan::kPeriodBefore) + 1]++] = op;
  }
  return index;
}

}  // namespace spillway::engine
