// SPDX-License-Identifier: Apache-2.0
//
// `spillway snapshot`: manages commits that are kept by name. Listing and exporting only read. The
// other commands open the store, and fail while a run has it.

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "io/store/store.h"
#include "io/store/store_view.h"
#include "nlohmann/json.hpp"
#include "src/base/bytes.h"
#include "src/base/status_macros.h"
#include "tools/spillway/command/arguments.h"
#include "tools/spillway/command/commands.h"
#include "tools/spillway/command/exit_code.h"
#include "tools/spillway/command/interrupt.h"
#include "tools/spillway/command/json_text.h"
#include "tools/spillway/store/opened_store.h"
#include "tools/spillway/store/snapshot_export.h"
#include "tools/spillway/store/store_summary.h"

namespace spillway::command {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kDescription[] =
    "Keep commits by name: list, create, restore, drop, export.\n"
    "\n"
    "A snapshot names the last commit. It copies nothing, whatever the size, and takes space only "
    "as\n"
    "later commits differ from it.\n"
    "\n"
    "Examples:\n"
    "  spillway snapshot create run before-sft\n"
    "  spillway snapshot list run --json\n"
    "  spillway snapshot restore run before-sft --keep after-sft\n"
    "  spillway snapshot export run before-sft --save tuned --model smollm2\n"
    "  spillway snapshot drop run before-sft\n";

constexpr char kList[] =
    "List a store's snapshots, the oldest first. Works while a run has the store.\n"
    "\n"
    "Examples:\n"
    "  spillway snapshot list run\n"
    "  spillway snapshot list run --json | jq -r '.snapshots[].label'\n";
constexpr char kCreate[] =
    "Keep the last commit under a label, of 1 to 128 letters, digits, '.', '_' and '-'.\n"
    "\n"
    "A label must not begin with '-', because it would be taken for an option.\n"
    "\n"
    "Examples:\n"
    "  spillway snapshot create run step-400\n";
constexpr char kRestore[] =
    "Go back to a snapshot: it becomes the last commit, and train --resume goes on from there.\n"
    "\n"
    "The commit that was the last is gone unless --keep names it first.\n"
    "\n"
    "Examples:\n"
    "  spillway snapshot restore run step-400\n"
    "  spillway snapshot restore run step-400 --keep step-900\n";
constexpr char kDrop[] =
    "Forget a snapshot; what nothing else needs is free for the next run.\n"
    "\n"
    "Examples:\n"
    "  spillway snapshot drop run step-400\n"
    "  spillway trim run                      # and give the space back to the file system\n";
constexpr char kExport[] =
    "Write a snapshot, or the last commit, as a Hugging Face folder.\n"
    "\n"
    "Reads the weights out of the store, checked, and changes nothing there. The folder has fp32\n"
    "safetensors, config.json from the commit, and the tokenizer's files of --model.\n"
    "\n"
    "Examples:\n"
    "  spillway snapshot export run --save tuned --model smollm2\n"
    "  spillway snapshot export run step-400 --save tuned-400\n";

struct SnapshotFlags {
  std::vector<std::string> store;
  std::string label;
  std::string keep;   // restore
  std::string save;   // export
  std::string model;  // export
  bool json = false;
};

Json ToJson(const io::SnapshotRecord& snapshot) {
  Json json = {{"label", snapshot.label}, {"number", snapshot.number}, {"time", snapshot.time}};
  if (const auto step = StepIn(snapshot.user_state)) json["step"] = *step;
  return json;
}

// Prints what a command did as one object, if --json is given.
void Print(const SnapshotFlags& flags, const Json& members) {
  if (!flags.json) return;
  Json json = {{"v", 1}};
  json.update(members);
  absl::PrintF("%s\n", JsonText(json));
}

absl::Status RunList(const SnapshotFlags& flags) {
  SPILLWAY_RETURN_IF_ERROR(CheckStoreArgument(flags.store));
  SPILLWAY_ASSIGN_OR_RETURN(const auto view,
                            OpenView(flags.store, io::StoreView::Wanted::kAnyState));
  SPILLWAY_ASSIGN_OR_RETURN(const auto snapshots, view->catalog().ReadSnapshots());
  Json list = Json::array();
  for (const io::SnapshotRecord& snapshot : snapshots) {
    list.push_back(ToJson(snapshot));
    if (flags.json) continue;
    const auto step = StepIn(snapshot.user_state);
    absl::PrintF("%-32s commit %d of %s%s\n", snapshot.label, snapshot.number, snapshot.time,
                 step ? absl::StrFormat(", step %d", *step) : "");
  }
  Print(flags, {{"snapshots", list}});
  return absl::OkStatus();
}

absl::Status RunExport(const SnapshotFlags& flags) {
  SPILLWAY_RETURN_IF_ERROR(CheckStoreArgument(flags.store));
  if (flags.save.empty()) return UsageError("--save is needed: the folder to write");
  SPILLWAY_RETURN_IF_ERROR(ExportFromStore(
      {.store = flags.store, .label = flags.label, .save = flags.save, .model = flags.model},
      CatchInterrupts()));
  Print(flags, {{"saved", flags.save}});
  return absl::OkStatus();
}

// Runs `work` on the opened store.
absl::Status WithStore(const SnapshotFlags& flags, LostFiles lost_files,
                       const std::function<absl::Status(io::Store*)>& work) {
  SPILLWAY_RETURN_IF_ERROR(CheckStoreArgument(flags.store));
  if (flags.label.empty()) return UsageError("a snapshot's label is needed");
  SPILLWAY_ASSIGN_OR_RETURN(const auto store, OpenedStore::Open(flags.store, lost_files));
  return work(&store->store());
}

absl::Status PrintSnapshot(const SnapshotFlags& flags, io::Store* store) {
  if (!flags.json) return absl::OkStatus();
  SPILLWAY_ASSIGN_OR_RETURN(const auto snapshots, store->Snapshots());
  for (const io::SnapshotRecord& snapshot : snapshots)
    if (snapshot.label == flags.label) Print(flags, {{"snapshot", ToJson(snapshot)}});
  return absl::OkStatus();
}

// A label that begins with '-' would be taken for an option by every command that is given it.
absl::Status CheckNewLabel(const std::string& label) {
  if (!label.starts_with('-')) return absl::OkStatus();
  return UsageError(absl::StrFormat(
      "the label '%s' begins with '-', as only options do; begin it with a letter, a digit, '.' or "
      "'_'",
      absl::CHexEscape(label)));
}

absl::Status RunCreate(const SnapshotFlags& flags) {
  SPILLWAY_RETURN_IF_ERROR(CheckNewLabel(flags.label));
  return WithStore(flags, LostFiles::kRefused, [&](io::Store* store) -> absl::Status {
    SPILLWAY_RETURN_IF_ERROR(store->Snapshot(flags.label));
    return PrintSnapshot(flags, store);
  });
}

absl::Status RunRestore(const SnapshotFlags& flags) {
  SPILLWAY_RETURN_IF_ERROR(CheckNewLabel(flags.keep));
  return WithStore(flags, LostFiles::kAnnounced, [&](io::Store* store) -> absl::Status {
    // A restore that cannot succeed makes no snapshot first.
    SPILLWAY_ASSIGN_OR_RETURN(const auto snapshots, store->Snapshots());
    const bool is_there =
        std::any_of(snapshots.begin(), snapshots.end(),
                    [&](const io::SnapshotRecord& each) { return each.label == flags.label; });
    if (is_there && !flags.keep.empty()) {
      SPILLWAY_RETURN_IF_ERROR(store->Snapshot(flags.keep));
    }
    SPILLWAY_RETURN_IF_ERROR(store->Restore(flags.label));
    return PrintSnapshot(flags, store);
  });
}

absl::Status RunDrop(const SnapshotFlags& flags) {
  return WithStore(flags, LostFiles::kAnnounced, [&](io::Store* store) -> absl::Status {
    const uint64_t before = store->used_bytes();
    SPILLWAY_RETURN_IF_ERROR(store->Drop(flags.label));
    const uint64_t freed = before - store->used_bytes();
    absl::FPrintF(stderr, "note: %s are free again\n", base::FormatBytes(freed));
    Print(flags, {{"dropped", flags.label}, {"freed_bytes", freed}});
    return absl::OkStatus();
  });
}

// Turns InvalidArgument, the store's error for a bad label, into a usage error.
absl::Status AsUsage(const absl::Status& status) {
  return absl::IsInvalidArgument(status) ? WithExitCode(status, ExitCode::kUsage) : status;
}

}  // namespace

void AddSnapshotCommand(CLI::App* app, Run* run) {
  CLI::App* const snapshot = AddCommand(app, "snapshot", kDescription);
  const auto flags = std::make_shared<SnapshotFlags>();
  using Action = absl::Status (*)(const SnapshotFlags&);
  const auto add = [&](const char* name, const char* description, Action action) {
    CLI::App* const sub = AddCommand(snapshot, name, description);
    AddStoreArgument(sub, &flags->store);
    AddFlag(sub, "--json", &flags->json, "One JSON object on stdout, nothing else there");
    WhenChosen(sub, [flags, run, action] { *run = [=] { return AsUsage(action(*flags)); }; });
    return sub;
  };
  const auto add_label = [&](CLI::App* sub) {
    AddText(sub, "LABEL", &flags->label, "The snapshot's name").Type("");
    return sub;
  };
  add("list", kList, RunList);
  add_label(add("create", kCreate, RunCreate));
  AddText(add_label(add("restore", kRestore, RunRestore)), "--keep", &flags->keep,
          "Keep the last commit under this label first");
  add_label(add("drop", kDrop, RunDrop));
  CLI::App* const export_ = add_label(add("export", kExport, RunExport));
  AddText(export_, "--save", &flags->save, "The folder to write; it must not be there, or empty");
  AddText(export_, "--model", &flags->model, "Folder to copy the tokenizer's files from");
}

}  // namespace spillway::command
