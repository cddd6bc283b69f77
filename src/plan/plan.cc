// SPDX-License-Identifier: Apache-2.0
//
// Tier by tier from above: what the device keeps decides what passes through pinned memory.

#include "src/plan/plan.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "src/base/bytes.h"
#include "src/base/status_macros.h"
#include "src/plan/op_writer.h"
#include "src/plan/pack.h"
#include "src/plan/uses.h"

namespace spillway::plan {
namespace {

// What a tier may be filled with, the rest being for transfers that run ahead.
uint64_t RoomToKeep(const Keeping& keeping, uint64_t capacity, uint64_t lookahead_bytes) {
  if (lookahead_bytes == PlanOptions::kAuto)
    lookahead_bytes = std::min(keeping.PeakUseBytes(), capacity / 8);
  return capacity - std::min(capacity, lookahead_bytes);
}

absl::StatusOr<TierPlan> PlanTier(Keeping keeping, const PlanOptions& options, Tier tier) {
  TierPlan plan;
  plan.keeping = std::move(keeping);
  const bool is_device = tier == Tier::kDevice;
  const bool is_last = !is_device && !options.has_store;
  const uint64_t capacity = base::RoundDown(is_device ? options.device_bytes : options.pinned_bytes,
                                            options.frame_alignment);
  const uint64_t lookahead =
      is_device ? options.device_lookahead_bytes : options.pinned_lookahead_bytes;
  plan.kept =
      is_last ? KeepAll(plan.keeping)
              : Keep(options.policy, plan.keeping, RoomToKeep(plan.keeping, capacity, lookahead));
  SPILLWAY_ASSIGN_OR_RETURN(plan.offset,
                            Pack(plan.keeping,
                                 {.capacity = capacity,
                                  .may_break = !is_last,
                                  .budget = is_device ? "device_bytes" : "pinned_bytes"},
                                 &plan.kept));
  return plan;
}

using PlaceKey = std::tuple<TileIndex, Tier, uint64_t>;
PlaceKey KeyOf(const Place& place) { return {place.tile, place.tier, place.offset}; }
std::set<PlaceKey> Keys(std::span<const Place> places) {
  std::set<PlaceKey> keys;
  for (const Place& place : places) keys.insert(KeyOf(place));
  return keys;
}

}  // namespace

std::string_view Name(Link link) {
  static constexpr std::array<std::string_view, kNumLinks> kNames = {"read", "write", "copy-in",
                                                                     "copy-out"};
  return kNames[static_cast<size_t>(link)];
}

absl::StatusOr<Plan> MakePlan(const Trace& trace, const PlanOptions& options) {
  SPILLWAY_RETURN_IF_ERROR(Validate(trace));
  const EventsByTile events(trace);
  SPILLWAY_ASSIGN_OR_RETURN(
      const TierPlan device,
      PlanTier(DeviceUses(trace, events, options.frame_alignment), options, Tier::kDevice));
  SPILLWAY_ASSIGN_OR_RETURN(const TierPlan pinned,
                            PlanTier(PinnedUses(trace, events, device.keeping, device.kept,
                                                options.frame_alignment, options.has_store),
                                     options, Tier::kPinned));
  Plan plan;
  plan.options = options;
  plan.fingerprint = Fingerprint(trace);
  plan.num_events = static_cast<uint32_t>(trace.events.size());
  WriteOps(trace, events, device, pinned, options.has_store, &plan);
  for (const Op& op : plan.ops) {
    if (Moves(op.kind)) plan.bytes[LinkOf(op.kind)] += trace.tiles[op.tile].size_bytes;
  }
  return plan;
}

Entry EnterPlan(const Plan& plan, const Trace& trace, std::span<const Place> now) {
  // What the device lacks comes through the bottom of pinned memory, before that is filled.
  const std::set<PlaceKey> here = Keys(now), wanted = Keys(plan.seam);
  uint64_t staging_bytes = 0;
  for (const Place& place : plan.seam) {
    if (place.tier == Tier::kDevice && here.count(KeyOf(place)) == 0)
      staging_bytes = std::max(staging_bytes, trace.tiles[place.tile].size_bytes);
  }
  const auto stays = [&](const Place& place) {
    const bool in_the_way = place.tier == Tier::kPinned && place.offset < staging_bytes;
    return here.count(KeyOf(place)) > 0 && wanted.count(KeyOf(place)) > 0 && !in_the_way;
  };
  Entry entry;
  for (const Place& place : now) {
    if (!stays(place)) entry.leave.push_back(place);
  }
  const auto add = [&](Op::Kind kind, const Place& place) {
    Op op;
    op.kind = kind;
    op.tile = place.tile;
    op.tier = place.tier;
    op.offset = place.offset;
    op.after = op.before = kNever;
    entry.ops.push_back(op);
  };
  for (const Tier tier : {Tier::kDevice, Tier::kPinned}) {
    for (const Place& place : plan.seam) {
      if (place.tier != tier || stays(place)) continue;
      if (tier == Tier::kPinned) {
        add(Op::Kind::kRead, place);
        continue;
      }
      const Place staging{place.tile, Tier::kPinned, 0};
      add(Op::Kind::kRead, staging);
      add(Op::Kind::kCopyIn, place);
      add(Op::Kind::kDrop, staging);
    }
  }
  return entry;
}

}  // namespace spillway::plan
