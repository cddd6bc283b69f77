// SPDX-License-Identifier: Apache-2.0
//
// `spillway inspect`: shows what a store holds and where, without changing it.

#include <algorithm>
#include <cstdio>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "io/store/calibration.h"
#include "io/store/store_view.h"
#include "src/base/bytes.h"
#include "src/base/status_macros.h"
#include "tools/spillway/command/arguments.h"
#include "tools/spillway/command/commands.h"
#include "tools/spillway/command/json_text.h"
#include "tools/spillway/store/opened_store.h"
#include "tools/spillway/store/store_summary.h"

namespace spillway::command {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kDescription[] =
    "Show what a store holds: tensors, commits, snapshots, devices, free space.\n"
    "\n"
    "Changes nothing, and works while a run has the store: then it shows that run's last commit.\n"
    "What is on disk (disk_bytes) is what the segment files take of it now; the other figures are\n"
    "the last commit's, and do not count what the files have grown by since.\n"
    "\n"
    "Examples:\n"
    "  spillway inspect run\n"
    "  spillway inspect run --tensors\n"
    "  spillway inspect nvme0/run,nvme1/run --json | jq '.devices[].used_bytes'\n";

struct InspectFlags {
  std::vector<std::string> store;
  bool tensors = false;
  bool json = false;
};

// Returns 0 if there is one free run or none, and a value near 1 if there are many short ones.
double Fragmentation(const DeviceSummary& device) {
  if (device.free_bytes == 0) return 0;
  return 1 -
         static_cast<double>(device.largest_free_bytes) / static_cast<double>(device.free_bytes);
}

std::string RoleOf(const TensorSummary& tensor) {
  if (!tensor.description.is_object()) return "unknown";
  return tensor.description.value("role", Json("unknown")).is_string()
             ? tensor.description.value("role", std::string("unknown"))
             : "unknown";
}

struct RoleTotals {
  uint64_t tensors = 0;
  uint64_t pages = 0;
  uint64_t bytes = 0;
};
std::map<std::string, RoleTotals> TotalsByRole(const StoreSummary& store) {
  std::map<std::string, RoleTotals> roles;
  for (const TensorSummary& tensor : store.tensors) {
    RoleTotals& totals = roles[RoleOf(tensor)];
    ++totals.tensors;
    totals.pages += tensor.stored_pages;
    totals.bytes += tensor.stored_bytes;
  }
  return roles;
}

Json CommitToJson(uint64_t number, const std::string& time, const std::string& user_state) {
  Json json = {{"number", number}, {"time", time}};
  if (const auto step = StepIn(user_state)) json["step"] = *step;
  json["user_state_bytes"] = user_state.size();
  return json;
}

Json ToJson(const DeviceSummary& device) {
  Json json = {{"path", device.path},
               {"disk_bytes", device.disk_bytes},
               {"segments", device.segments},
               {"file_bytes", device.file_bytes},
               {"written_bytes", device.written_bytes},
               {"used_bytes", device.used_bytes()},
               {"free_bytes", device.free_bytes},
               {"free_runs", device.free_runs},
               {"largest_free_bytes", device.largest_free_bytes},
               {"fragmentation", Fragmentation(device)},
               {"calibration", nullptr}};
  if (device.profile) {
    json["calibration"] = {{"request_bytes", device.profile->request_bytes},
                           {"read_depth", device.profile->read_depth},
                           {"write_depth", device.profile->write_depth},
                           {"mixed_write_depth", device.profile->mixed_write_depth},
                           {"read_bytes_per_second", device.profile->read_bytes_per_second},
                           {"write_bytes_per_second", device.profile->write_bytes_per_second},
                           {"seconds_behind_writes", io::SecondsBehindWrites(*device.profile)}};
  }
  return json;
}

Json ToJson(const StoreSummary& store) {
  Json json = {{"v", 1},
               {"store_id", store.store_id},
               {"format", store.format_version},
               {"page_bytes", store.page_bytes},
               {"scratch", store.is_scratch},
               {"held_by", store.holder.empty() ? Json() : Json(store.holder)},
               {"commit", nullptr}};
  if (store.commit) {
    json["commit"] =
        CommitToJson(store.commit->number, store.commit->time, store.commit->user_state);
    json["commit"]["used_bytes"] = store.commit->used_bytes;
  }
  json["roles"] = Json::object();
  for (const auto& [role, totals] : TotalsByRole(store)) {
    json["roles"][role] = {
        {"tensors", totals.tensors}, {"pages", totals.pages}, {"bytes", totals.bytes}};
  }
  json["devices"] = Json::array();
  for (const DeviceSummary& device : store.devices) json["devices"].push_back(ToJson(device));
  json["snapshots"] = Json::array();
  for (const io::SnapshotRecord& snapshot : store.snapshots) {
    Json entry = {{"label", snapshot.label}};
    entry.update(CommitToJson(snapshot.number, snapshot.time, snapshot.user_state));
    json["snapshots"].push_back(std::move(entry));
  }
  json["snapshot_bytes"] = store.snapshot_bytes;
  json["tensors"] = Json::array();
  for (const TensorSummary& tensor : store.tensors) {
    json["tensors"].push_back({{"name", tensor.name},
                               {"description", tensor.description},
                               {"pages", tensor.pages},
                               {"stored_pages", tensor.stored_pages},
                               {"stored_bytes", tensor.stored_bytes}});
  }
  return json;
}

std::string StepText(const std::string& user_state) {
  const auto step = StepIn(user_state);
  return step ? absl::StrFormat(", step %d", *step) : "";
}

void PrintDevices(const StoreSummary& store) {
  absl::PrintF("\n%-32s%12s%10s%12s%12s%12s%8s\n", "device", "on disk", "segments", "files", "used",
               "free", "runs");
  for (const DeviceSummary& device : store.devices) {
    absl::PrintF("%-32s%12s%10d%12s%12s%12s%8d\n", device.path,
                 base::FormatBytes(device.disk_bytes), device.segments,
                 base::FormatBytes(device.file_bytes), base::FormatBytes(device.used_bytes()),
                 base::FormatBytes(device.free_bytes), device.free_runs);
    absl::PrintF("  calibration: %s\n",
                 device.profile ? DescribeCalibration(*device.profile) : "none");
    if (device.free_runs > 1) {
      absl::PrintF("  longest free run %s, fragmentation %.0f%%\n",
                   base::FormatBytes(device.largest_free_bytes), 100 * Fragmentation(device));
    }
  }
}

void PrintText(const StoreSummary& store, bool with_tensors) {
  absl::PrintF("store %s, format %d, pages of %s%s\n", store.store_id, store.format_version,
               base::FormatBytes(store.page_bytes), store.is_scratch ? ", scratch" : "");
  if (!store.holder.empty()) {
    absl::PrintF("in use by %s; this is its last commit\n", store.holder);
  }
  if (store.commit) {
    absl::PrintF("commit %d of %s%s; %s in use\n", store.commit->number, store.commit->time,
                 StepText(store.commit->user_state), base::FormatBytes(store.commit->used_bytes));
  } else {
    absl::PrintF("no commit yet\n");
  }
  for (const io::SnapshotRecord& snapshot : store.snapshots) {
    absl::PrintF("snapshot %-24s commit %d of %s%s\n", snapshot.label, snapshot.number,
                 snapshot.time, StepText(snapshot.user_state));
  }
  if (!store.snapshots.empty()) {
    absl::PrintF("%s only for snapshots\n", base::FormatBytes(store.snapshot_bytes));
  }
  absl::PrintF("\n%-16s%10s%12s%14s\n", "role", "tensors", "pages", "stored");
  for (const auto& [role, totals] : TotalsByRole(store)) {
    absl::PrintF("%-16s%10d%12d%14s\n", role, totals.tensors, totals.pages,
                 base::FormatBytes(totals.bytes));
  }
  PrintDevices(store);
  if (!with_tensors) return;
  absl::PrintF("\n%-56s%-16s%8s%12s%14s\n", "tensor", "role", "dtype", "pages", "stored");
  for (const TensorSummary& tensor : store.tensors) {
    const std::string dtype = tensor.description.is_object() &&
                                      tensor.description.contains("dtype") &&
                                      tensor.description["dtype"].is_string()
                                  ? tensor.description["dtype"].get<std::string>()
                                  : "";
    absl::PrintF("%-55s %-16s%8s%12d%14s\n", tensor.name, RoleOf(tensor), dtype,
                 tensor.stored_pages, base::FormatBytes(tensor.stored_bytes));
  }
}

absl::Status RunInspect(const InspectFlags& flags) {
  SPILLWAY_RETURN_IF_ERROR(CheckStoreArgument(flags.store));
  SPILLWAY_ASSIGN_OR_RETURN(const auto view,
                            OpenView(flags.store, io::StoreView::Wanted::kAnyState));
  SPILLWAY_ASSIGN_OR_RETURN(const StoreSummary store, SummarizeStore(*view));
  if (flags.json) {
    absl::PrintF("%s\n", JsonText(ToJson(store)));
  } else {
    PrintText(store, flags.tensors);
  }
  return absl::OkStatus();
}

}  // namespace

void AddInspectCommand(CLI::App* app, Run* run) {
  CLI::App* const inspect = AddCommand(app, "inspect", kDescription);
  const auto flags = std::make_shared<InspectFlags>();
  AddStoreArgument(inspect, &flags->store);
  AddFlag(inspect, "--tensors", &flags->tensors, "List every tensor (the JSON always does)");
  AddFlag(inspect, "--json", &flags->json, "One JSON object on stdout, nothing else there");
  WhenChosen(inspect, [flags, run] { *run = [flags] { return RunInspect(*flags); }; });
}

}  // namespace spillway::command
