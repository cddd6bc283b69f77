// SPDX-License-Identifier: Apache-2.0
//
// `spillway trim`: gives the free bytes of a store back to its file systems.

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "src/base/bytes.h"
#include "src/base/status_macros.h"
#include "tools/spillway/command/arguments.h"
#include "tools/spillway/command/commands.h"
#include "tools/spillway/command/json_text.h"
#include "tools/spillway/store/opened_store.h"

namespace spillway::command {
namespace {

constexpr char kDescription[] =
    "Give a store's free bytes back to its file systems.\n"
    "\n"
    "A run uses free bytes of its store again, and faster than fresh ones: trim what will not be\n"
    "trained on soon. Slow on drives that discard slowly.\n"
    "\n"
    "Examples:\n"
    "  spillway trim run\n"
    "  spillway trim nvme0/run,nvme1/run --json\n";

struct TrimFlags {
  std::vector<std::string> store;
  bool json = false;
};

absl::Status RunTrim(const TrimFlags& flags) {
  SPILLWAY_RETURN_IF_ERROR(CheckStoreArgument(flags.store));
  SPILLWAY_ASSIGN_OR_RETURN(const auto store,
                            OpenedStore::Open(flags.store, LostFiles::kAnnounced));
  SPILLWAY_ASSIGN_OR_RETURN(const uint64_t bytes, store->store().Trim());
  if (flags.json) {
    absl::PrintF("%s\n", JsonText({{"v", 1}, {"bytes", bytes}}));
  } else {
    absl::PrintF("%s given back\n", base::FormatBytes(bytes));
  }
  return absl::OkStatus();
}

}  // namespace

void AddTrimCommand(CLI::App* app, Run* run) {
  CLI::App* const trim = AddCommand(app, "trim", kDescription);
  const auto flags = std::make_shared<TrimFlags>();
  AddStoreArgument(trim, &flags->store);
  AddFlag(trim, "--json", &flags->json, "One JSON object on stdout, nothing else there");
  WhenChosen(trim, [flags, run] { *run = [flags] { return RunTrim(*flags); }; });
}

}  // namespace spillway::command
