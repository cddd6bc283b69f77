// SPDX-License-Identifier: Apache-2.0
//
// `spillway fsck`: checks every invariant and every checksum of a store, and reports what a crash
// left.

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "io/io_engine_options.h"
#include "io/make_io_engine.h"
#include "io/posix_io_engine.h"
#include "io/store/store_check.h"
#include "io/store/store_view.h"
#include "nlohmann/json.hpp"
#include "src/base/bytes.h"
#include "src/base/status_macros.h"
#include "tools/spillway/command/arguments.h"
#include "tools/spillway/command/commands.h"
#include "tools/spillway/command/exit_code.h"
#include "tools/spillway/command/interrupt.h"
#include "tools/spillway/command/json_text.h"
#include "tools/spillway/command/progress.h"
#include "tools/spillway/store/opened_store.h"

namespace spillway::command {
namespace {

using Json = nlohmann::ordered_json;

constexpr char kDescription[] =
    "Check a store: its catalog, its free space, and the checksum of every page.\n"
    "\n"
    "Reads everything that the last commit and the snapshots name, and changes nothing. Bytes "
    "that\n"
    "no catalog entry refers to (orphans, as a crash leaves them) are harmless; --repair gives\n"
    "them back. Damage to pages or to the catalog cannot be repaired: restore the store from a "
    "copy,\n"
    "go back to a snapshot that is whole, or start over. A damaged calibration costs only speed:\n"
    "the next run with --calibrate now replaces it.\n"
    "\n"
    "Exit codes: 0 whole, 4 damaged, 1 the check could not be made.\n"
    "\n"
    "Examples:\n"
    "  spillway fsck run\n"
    "  spillway fsck nvme0/run,nvme1/run --json\n"
    "  spillway fsck run --catalog-only      # seconds, whatever the size\n"
    "  spillway fsck run --repair\n";

struct FsckFlags {
  std::vector<std::string> store;
  bool catalog_only = false;
  bool repair = false;
  bool json = false;
};

std::string_view KindName(io::Orphan::Kind kind) {
  switch (kind) {
    case io::Orphan::Kind::kUnnamed: return "unnamed";
    case io::Orphan::Kind::kTail: return "tail";
    case io::Orphan::Kind::kLeftover: return "leftover";
  }
  return "";
}

Json ToJson(const io::StoreCheckReport& report, bool repaired) {
  Json findings = Json::array();
  for (const io::StoreFinding& finding : report.findings) {
    Json json = {{"message", finding.message}};
    if (!finding.tensor.empty()) json["tensor"] = finding.tensor;
    if (finding.page) json["page"] = *finding.page;
    if (!finding.path.empty()) json["file"] = finding.path;
    if (finding.offset) json["offset"] = *finding.offset;
    if (!finding.commits.empty()) json["needed_by"] = finding.commits;
    findings.push_back(std::move(json));
  }
  Json orphans = Json::array();
  for (const io::Orphan& orphan : report.orphans) {
    orphans.push_back({{"kind", KindName(orphan.kind)},
                       {"file", orphan.path},
                       {"offset", orphan.offset},
                       {"bytes", orphan.size_bytes}});
  }
  return {{"v", 1},
          {"whole", report.damage == 0},
          {"damage", report.damage},
          {"findings", findings},
          {"tensors", report.tensors},
          {"pages", report.pages},
          {"extents", report.extents},
          {"snapshots", report.snapshots},
          {"used_bytes", report.used_bytes},
          {"free_bytes", report.free_bytes},
          {"read_bytes", report.read_bytes},
          {"orphan_bytes", report.orphan_bytes},
          {"orphans", orphans},
          {"repaired", repaired}};
}

void PrintText(const io::StoreCheckReport& report, bool repaired) {
  for (const io::StoreFinding& finding : report.findings) absl::PrintF("%s\n", finding.message);
  if (report.damage > report.findings.size()) {
    absl::PrintF("and %d more\n", report.damage - report.findings.size());
  }
  absl::PrintF(
      "%s, %s in %s, %s; %s used, %s free, %s read\n", base::FormatCount(report.tensors, "tensor"),
      base::FormatCount(report.pages, "page"), base::FormatCount(report.extents, "extent"),
      base::FormatCount(report.snapshots, "snapshot"), base::FormatBytes(report.used_bytes),
      base::FormatBytes(report.free_bytes), base::FormatBytes(report.read_bytes));
  if (!report.orphans.empty()) {
    absl::PrintF("%s that nothing names, in %s: %s\n", base::FormatBytes(report.orphan_bytes),
                 base::FormatCount(report.orphans.size(), "place"),
                 repaired ? "given back" : "harmless; --repair gives them back");
  }
  if (report.damage == 0) absl::PrintF("whole\n");
}

absl::Status RunFsck(const FsckFlags& flags) {
  SPILLWAY_RETURN_IF_ERROR(CheckStoreArgument(flags.store));
  SPILLWAY_ASSIGN_OR_RETURN(const auto view, OpenView(flags.store, io::StoreView::Wanted::kAlone));
  auto io = io::MakeIoEngine(IoKind::kAuto, {}, flags.store[0]);
  // The choice takes a file in the folder, which perhaps can only be read.
  if (!io.ok()) io = io::PosixIoEngine::Create({});
  SPILLWAY_RETURN_IF_ERROR(io.status());
  Progress progress("checked");
  io::StoreCheckOptions options;
  options.read_pages = !flags.catalog_only;
  options.stop = &CatchInterrupts();
  options.progress = [&](uint64_t done, uint64_t total) { progress.Show(done, total); };
  absl::StatusOr<io::StoreCheckReport> report = io::CheckStore(*view, io->get(), options);
  progress.End();
  SPILLWAY_RETURN_IF_ERROR(report.status());

  const bool repair = flags.repair && !report->orphans.empty() && report->damage == 0;
  if (repair) SPILLWAY_RETURN_IF_ERROR(io::ReclaimOrphans(view.get(), report->orphans));
  if (flags.json) {
    absl::PrintF("%s\n", JsonText(ToJson(*report, repair)));
  } else {
    PrintText(*report, repair);
  }
  if (report->damage == 0) return absl::OkStatus();
  return absl::DataLossError(absl::StrFormat(
      "the store is damaged in %s%s", base::FormatCount(report->damage, "place"),
      flags.repair ? "; nothing was repaired: that is for a store that is whole" : ""));
}

}  // namespace

void AddFsckCommand(CLI::App* app, Run* run) {
  CLI::App* const fsck = AddCommand(app, "fsck", kDescription);
  const auto flags = std::make_shared<FsckFlags>();
  AddStoreArgument(fsck, &flags->store);
  AddFlag(fsck, "--catalog-only", &flags->catalog_only, "Do not read the pages");
  AddFlag(fsck, "--repair", &flags->repair, "Give back what nothing names, if nothing is damaged");
  AddFlag(fsck, "--json", &flags->json, "One JSON object on stdout, nothing else there");
  WhenChosen(fsck, [flags, run] { *run = [flags] { return RunFsck(*flags); }; });
}

}  // namespace spillway::command
