// SPDX-License-Identifier: Apache-2.0
//
// Plans tier by tier from the top: what the device retains decides which tiles pass through pinned
// memory.

#include "src/plan/make_plan.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "src/base/bytes.h"
#include "src/base/status_macros.h"
#include "src/plan/op_writer.h"
#include "src/plan/pack.h"
#include "src/plan/uses.h"

namespace spillway::plan {
namespace {

// Returns the room for transfers that run ahead: the bytes that are used at once, times the share
// of bytes that does not stay in the tier.
uint64_t Lookahead(const Retention& retention, uint64_t capacity) {
  uint64_t all = 0, largest = 0;
  for (TileIndex tile = 0; tile < retention.num_tiles(); ++tile) {
    if (retention.has_reserved_frame(tile)) continue;
    all += retention.size_bytes[tile];
    largest = std::max(largest, retention.size_bytes[tile]);
  }
  if (all <= capacity) return 0;
  const double passing = 1 - static_cast<double>(capacity) / static_cast<double>(all);
  const auto ahead = static_cast<double>(std::min(retention.peak_use_bytes, capacity / 8));
  return std::max(static_cast<uint64_t>(passing * ahead), std::min(largest, capacity / 8));
}

// Sets the gaps of tiles with a reserved frame: they are retained unless they follow a void. No
// choice retains a gap of a tile that rests in another tier, so those are not looked at.
void RetainReserved(const Retention& retention, Retained* retained) {
  for (uint32_t u = 0; u < retention.uses.size(); ++u) {
    const Use& use = retention.uses[u];
    if (retention.has_reserved_frame(use.tile)) (*retained)[u] = use.kind == Use::Kind::kHold;
  }
}

absl::StatusOr<TierPlan> PlanTier(Retention retention, const PlanOptions& options, Tier tier) {
  if (options.stop) return Stopped();
  TierPlan plan;
  plan.retention = std::move(retention);
  const bool is_device = tier == Tier::kDevice;
  const bool is_last = !is_device && !options.has_store;
  const uint64_t budget = is_device ? options.device_bytes : options.pinned_bytes;
  const uint64_t reserve = is_device ? options.device_reserve_bytes : options.pinned_reserve_bytes;
  const uint64_t capacity =
      base::RoundDown(budget - std::min(budget, reserve), options.frame_alignment);
  const uint64_t room = capacity - std::min(capacity, plan.retention.ReservedFrameBytes());
  const uint64_t lookahead = options.has_lookahead ? Lookahead(plan.retention, room) : 0;
  const std::vector<Retained> ways =
      is_last ? std::vector<Retained>{RetainAll(plan.retention)}
              : options.choose_retained(plan.retention, room - lookahead, options.stop);
  const PackOptions packing = {.capacity = capacity,
                               .may_break = !is_last,
                               .budget = is_device ? "device_bytes" : "pinned_bytes"};
  uint64_t least_bytes = ~uint64_t{0};
  for (Retained retained : ways) {
    if (options.stop) return Stopped();
    SPILLWAY_ASSIGN_OR_RETURN(std::vector<uint64_t> offset,
                              Pack(plan.retention, packing, &retained));
    // Pack gave up the gaps that did not fit. Tiles in reserved frames stay retained.
    RetainReserved(plan.retention, &retained);
    const uint64_t bytes = Cost(plan.retention, retained);
    if (bytes >= least_bytes) continue;
    least_bytes = bytes;
    plan.retained = std::move(retained);
    plan.offset = std::move(offset);
  }
  if (options.stop) return Stopped();  // there may be no way
  return plan;
}

}  // namespace

absl::StatusOr<Plan> MakePlan(const Trace& trace, const PlanOptions& options) {
  SPILLWAY_RETURN_IF_ERROR(Validate(trace));
  if (options.stop) return Stopped();
  const EventsByTile events(trace);
  SPILLWAY_ASSIGN_OR_RETURN(
      const TierPlan device,
      PlanTier(DeviceUses(trace, events, options.frame_alignment), options, Tier::kDevice));
  SPILLWAY_ASSIGN_OR_RETURN(const TierPlan pinned,
                            PlanTier(PinnedUses(trace, events, device.retention, device.retained,
                                                options.frame_alignment, options.has_store),
                                     options, Tier::kPinned));
  Plan plan;
  plan.options = options;
  WriteOps(trace, events, device, pinned, &plan);
  for (const Op& op : plan.ops) {
    if (HasLink(op.kind)) plan.bytes[op.kind] += trace.tiles[op.tile].size_bytes;
  }
  return plan;
}

}  // namespace spillway::plan
