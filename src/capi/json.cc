// SPDX-License-Identifier: Apache-2.0

#include "src/capi/json.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "nlohmann/json.hpp"

namespace spillway::capi {
namespace {

using Json = nlohmann::ordered_json;

// Returns the JSON as text. Invalid UTF-8 is replaced, because names come from the caller.
std::string Text(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Json Of(const Traffic& traffic) {
  return {{"read_bytes", traffic.read_bytes}, {"written_bytes", traffic.written_bytes}};
}

Json Of(const Occupancy& room) {
  return {{"now_bytes", room.now_bytes}, {"peak_bytes", room.peak_bytes}};
}

// Returns an object with a member for each tier.
template <class Array>
Json ByTier(const Array& values) {
  Json by = Json::object();
  for (size_t tier = 0; tier < values.size(); ++tier)
    by[std::string(Name(static_cast<Tier>(tier)))] = Of(values[tier]);
  return by;
}

std::string RoleName(size_t role) { return std::string(Name(static_cast<Role>(role))); }

Json Of(const PlanStats& plan) {
  return {{"plans", plan.plans},
          {"steps", plan.steps},
          {"pulled", plan.pulled},
          {"deviations", plan.deviations},
          {"nvme", Of(plan.nvme)},
          {"pinned", Of(plan.pinned)},
          {"planned_bytes", plan.planned_bytes},
          {"bytes_bound", plan.bytes_bound},
          {"nvme_bytes_bound", plan.nvme_bytes_bound},
          {"time_bound_seconds", plan.time_bound_seconds},
          {"compute_seconds", plan.compute_seconds},
          {"transfer_seconds", plan.transfer_seconds},
          {"not_planned", plan.not_planned}};
}

Json Of(const DriveStats& drive) {
  return {{"folder", drive.folder},
          {"read_bytes_per_second", drive.read_bytes_per_second},
          {"write_bytes_per_second", drive.write_bytes_per_second}};
}

std::string_view KindName(TimelineEvent::Kind kind) {
  constexpr std::string_view kNames[] = {"read",  "write", "copy in", "copy out", "compute",
                                         "stall", "mover", "flush",   "commit",   "occupancy"};
  return kNames[static_cast<size_t>(kind)];
}

bool IsTransfer(TimelineEvent::Kind kind) { return kind <= TimelineEvent::Kind::kCopyOut; }

Json Of(const Timeline& timeline, const TimelineEvent& event) {
  using Kind = TimelineEvent::Kind;
  Json of = {{"kind", std::string(KindName(event.kind))}, {"begin_ns", event.begin_ns}};
  if (event.kind != Kind::kOccupancy) of["end_ns"] = event.end_ns;
  if (IsTransfer(event.kind)) of["reason"] = std::string(Name(event.reason));
  if (IsTransfer(event.kind) || event.kind == Kind::kOccupancy) of["size_bytes"] = event.size_bytes;
  if (event.kind == Kind::kOccupancy) of["tier"] = std::string(Name(event.tier));
  if (event.failed) of["failed"] = true;
  if (event.kind == Kind::kStall) of["cause"] = std::string(Name(event.cause));
  if (event.tile != TimelineEvent::kNoTile) of["tile"] = timeline.TileName(event.tile);
  if (event.other != TimelineEvent::kNoTile) of["other"] = timeline.TileName(event.other);
  const bool is_callers = event.kind == Kind::kCompute || event.kind == Kind::kStall ||
                          event.kind == Kind::kFlush || event.kind == Kind::kCommit;
  if (is_callers) of["thread"] = event.thread;
  return of;
}

}  // namespace

std::string ToJson(const TensorSpec& spec) {
  return Text({{"name", spec.name},
               {"dtype", std::string(Name(spec.dtype))},
               {"shape", spec.shape},
               {"role", std::string(Name(spec.role))},
               {"tile_rows", spec.tile_rows},
               {"transient", spec.transient},
               {"num_tiles", spec.num_tiles()},
               {"size_bytes", spec.size_bytes()}});
}

std::string ToJson(const std::vector<SnapshotInfo>& snapshots) {
  Json list = Json::array();
  for (const SnapshotInfo& each : snapshots)
    list.push_back({{"label", each.label}, {"number", each.number}, {"time", each.time}});
  return Text(list);
}

std::string ToJson(const std::vector<NamedId>& tensors) {
  Json list = Json::array();
  for (const NamedId& each : tensors) list.push_back({{"name", each.name}, {"id", each.id.value}});
  return Text(list);
}

std::string ToJson(const EngineStats& stats) {
  Json roles = Json::object(), role_tiers = Json::object(), placement = Json::object();
  Json drives = Json::array();
  for (const DriveStats& drive : stats.drives) drives.push_back(Of(drive));
  for (size_t role = 0; role < kNumRoles; ++role) {
    roles[RoleName(role)] = Of(stats.role_nvme[role]);
    role_tiers[RoleName(role)] = ByTier(stats.role_tiers[role]);
    if (stats.placement[role])
      placement[RoleName(role)] = std::string(Name(*stats.placement[role]));
  }
  return Text({{"nvme", Of(stats.nvme)},
               {"pinned", Of(stats.pinned)},
               {"role_nvme", roles},
               {"tiers", ByTier(stats.tiers)},
               {"role_tiers", role_tiers},
               {"acquires", stats.acquires},
               {"acquire_waits", stats.acquire_waits},
               {"stall_seconds", stats.stall_seconds},
               {"io_seconds", stats.io_seconds},
               {"hidden_seconds", stats.hidden_seconds},
               {"prefetches", stats.prefetches},
               {"prefetch_wasted", stats.prefetch_wasted},
               {"commits", stats.commits},
               {"plan", Of(stats.plan)},
               {"placement", placement},
               {"fallbacks", stats.fallbacks},
               {"io_engine", stats.io_engine},
               {"device", stats.device},
               {"drives", drives}});
}

std::string ToJson(const Timeline& timeline) {
  Json events = Json::array(), budgets = Json::object();
  for (const TimelineEvent& event : timeline.events) events.push_back(Of(timeline, event));
  for (size_t tier = 0; tier < kNumTiers; ++tier) {
    const uint64_t bytes = timeline.budget_bytes[tier];
    budgets[std::string(Name(static_cast<Tier>(tier)))] =
        bytes == kUnlimited ? Json(nullptr) : Json(bytes);
  }
  return Text({{"begin_ns", timeline.begin_ns},
               {"end_ns", timeline.end_ns},
               {"dropped", timeline.dropped},
               {"budget_bytes", budgets},
               {"nvme", Of(timeline.nvme)},
               {"pinned", Of(timeline.pinned)},
               {"events", events}});
}

}  // namespace spillway::capi
