// SPDX-License-Identifier: Apache-2.0
//
// The engine's flags, their checks, and the engine opened with them.

#include "tools/spillway/train/engine_flags.h"

#include <algorithm>
#include <cstdio>
#include <set>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "src/base/bytes.h"
#include "src/base/status_macros.h"
#include "tools/spillway/command/arguments.h"
#include "tools/spillway/command/exit_code.h"
#include "tools/spillway/train/scratch_store.h"
#include "tools/spillway/train/store_room.h"

namespace spillway::command {
namespace {

// OpenBLAS ends the process with more than some 960.
constexpr int64_t kMostThreads = 512;
constexpr uint64_t kLeastPageBytes = 4 * kKiB;
constexpr uint64_t kMostPageBytes = kGiB;
constexpr uint64_t kLeastCalibratedBytes = 256 * kMiB;  // less moves in well under a second

// Lists the roles that are placed in the tier with their bytes, as in
// "parameter 1.5 MiB, gradient 1.5 MiB". Empty if there are none.
std::string ListResting(const trainer::MinimumBudgets& budgets, const Placement& placement,
                        Tier tier) {
  std::string list;
  for (size_t role = 0; role < kNumRoles; ++role) {
    if (placement[role] != tier || budgets.role_bytes[role] == 0) continue;
    absl::StrAppend(&list, list.empty() ? "" : ", ", std::string(Name(static_cast<Role>(role))),
                    " ", base::FormatBytes(budgets.role_bytes[role]));
  }
  return list;
}

absl::Status CheckBudget(std::string_view flag, uint64_t given, uint64_t smallest,
                         const std::string& resting) {
  if (given >= smallest) return absl::OkStatus();
  const bool reads_alike = base::FormatBytes(given) == base::FormatBytes(smallest);
  const std::string given_flag =
      absl::StrCat(std::string(flag), " ",
                   reads_alike ? absl::StrCat(given, " bytes") : base::FormatBytes(given));
  if (resting.empty()) {
    return UsageError(absl::StrFormat(
        "%s is too small for this model, sequence and batch; the smallest that works is %s "
        "(%d bytes)",
        given_flag, base::FormatBytes(smallest), smallest));
  }
  return UsageError(absl::StrFormat(
      "%s is too small for what is placed there (%s) and the tiles in use beside it; give at least "
      "%s (%d bytes), or place fewer roles there",
      given_flag, resting, base::FormatBytes(smallest), smallest));
}

Calibration CalibrationOf(CalibrateChoice choice, const StoreNeed& need) {
  if (choice == CalibrateChoice::kNow) return Calibration::kNow;
  if (choice == CalibrateChoice::kOff) return Calibration::kKeep;
  const uint64_t bytes = need.state.committed + need.state.transient;
  return bytes >= kLeastCalibratedBytes ? Calibration::kIfNone : Calibration::kKeep;
}

}  // namespace

void AddEngineFlags(CLI::App* app, EngineFlags* flags, const std::string& store_help) {
  if (flags->threads == 0) flags->threads = std::max(1U, std::thread::hardware_concurrency());
  AddList(app, "--store", &flags->store, store_help);
  AddSize(app, "--store-bytes", &flags->store_bytes,
          "Most bytes of tensors in the store (free space if not given)");
  AddSize(app, "--device-bytes", &flags->device_bytes,
          "Budget of the device tier, or unlimited (default)");
  AddSize(app, "--pinned-bytes", &flags->pinned_bytes,
          "Budget of pinned host memory, or unlimited (default)");
  AddSize(app, "--page-bytes", &flags->page_bytes,
          "Unit of transfers and checksums, a multiple of 4KiB; fixed for the life of a store",
          kLeastPageBytes);
  AddChoice<IoKind>(app, "--io", &flags->io,
                    {{"uring", IoKind::kUring}, {"posix", IoKind::kPosix}, {"auto", IoKind::kAuto}},
                    "How bytes reach the store's files");
  AddChoice<CalibrateChoice>(app, "--calibrate", &flags->calibrate,
                             {{"auto", CalibrateChoice::kAuto},
                              {"now", CalibrateChoice::kNow},
                              {"off", CalibrateChoice::kOff}},
                             "Measure the store's devices first: some 6 s each; auto does once, "
                             "for 256 MiB of state or more");
  AddChoice<bool>(app, "--policy", &flags->plan_steps, {{"planned", true}, {"demand", false}},
                  "What decides which bytes stay in which tier: a plan of the step, or demand "
                  "alone. Numbers computed do not depend on it");
  AddPlacementFlags(app, &flags->placement);
  AddDevice(app, "--device", &flags->device,
            "Where to compute: on this machine's processor, or on a GPU (compute capability 8.0 or "
            "newer). A run stays on the kind of device that it began on");
  AddText(
      app, "--cublaslt", &flags->cublaslt,
      "NVIDIA's cuBLASLt, which makes a GPU's products: libcublasLt.so.13 or .12 (default: it is "
      "looked for, as spillway doctor shows)")
      .Type("FILE");
  AddInteger(app, "--threads", &flags->threads, 1, kMostThreads,
             "Threads that compute; another number gives other roundings, hence other numbers");
}

absl::Status CheckEngineFlags(const EngineFlags& flags) {
  if (!flags.cublaslt.empty() && flags.device.kind() == Device::Kind::kHost) {
    return UsageError("--cublaslt is for a GPU; give --device cuda too");
  }
  const bool is_multiple = flags.page_bytes % kLeastPageBytes == 0;
  if (flags.page_bytes != 0 && (!is_multiple || flags.page_bytes > kMostPageBytes)) {
    return UsageError(absl::StrFormat(
        "--page-bytes %d is not a multiple of 4 KiB from 4 KiB to 1 GiB", flags.page_bytes));
  }
  const std::set<std::string> folders(flags.store.begin(), flags.store.end());
  if (folders.size() != flags.store.size()) return UsageError("--store names a folder twice");
  if (flags.store.empty() && flags.store_bytes != kUnlimited) {
    return UsageError("--store-bytes is for a store; give --store DIR too");
  }
  SPILLWAY_ASSIGN_OR_RETURN(const Placement placement, PlacementOf(flags.placement));
  const bool on_nvme =
      std::find(placement.begin(), placement.end(), Tier::kNvme) != placement.end();
  if (flags.store.empty() && on_nvme) {
    return UsageError("nothing can rest on nvme without a store; give --store DIR too");
  }
  return absl::OkStatus();
}

StorePlace PlaceOf(const EngineFlags& flags) {
  return {flags.store, flags.store_bytes, flags.pinned_bytes, flags.page_bytes};
}

absl::StatusOr<trainer::TileSizes> TilesFor(const EngineFlags& flags, const hf::ModelConfig& config,
                                            const trainer::ModelOptions& options) {
  SPILLWAY_ASSIGN_OR_RETURN(const Placement placement, PlacementOf(flags.placement));
  return trainer::TilesWithin(config, options, placement, flags.device_bytes, flags.pinned_bytes);
}

namespace {

absl::Status CheckBudgets(const EngineFlags& flags, const hf::ModelConfig& config,
                          const trainer::ModelOptions& options, const Placement& placement) {
  const trainer::MinimumBudgets smallest = trainer::SmallestBudgets(config, options, placement);
  SPILLWAY_RETURN_IF_ERROR(CheckBudget("--device-bytes", flags.device_bytes, smallest.device_bytes,
                                       ListResting(smallest, placement, Tier::kDevice)));
  return CheckBudget("--pinned-bytes", flags.pinned_bytes, smallest.pinned_bytes,
                     ListResting(smallest, placement, Tier::kPinned));
}

}  // namespace

absl::Status CheckRoom(const EngineFlags& flags, const hf::ModelConfig& config,
                       const trainer::ModelOptions& options, const StoreNeed& need) {
  SPILLWAY_ASSIGN_OR_RETURN(const Placement placement, PlacementOf(flags.placement));
  const absl::Status budgets = CheckBudgets(flags, config, options, placement);
  if (!budgets.ok()) {
    trainer::ModelOptions smaller = options;
    SPILLWAY_ASSIGN_OR_RETURN(smaller.tiles, TilesFor(flags, config, options));
    if (smaller.tiles == options.tiles || !CheckBudgets(flags, config, smaller, placement).ok())
      return budgets;
    return UsageError(absl::StrFormat(
        "%s. A new run would take smaller tiles, but this store's have up to %d elements, which a "
        "resumed run keeps",
        std::string(budgets.message()), options.tiles.values));
  }
  if (!flags.store.empty()) return CheckStoreRoom(PlaceOf(flags), need);
  const uint64_t all = need.state.committed_room + need.state.transient_room;
  if (flags.pinned_bytes >= all) return absl::OkStatus();
  return UsageError(absl::StrFormat(
      "--pinned-bytes %s is too small without a store: everything rests in pinned memory, %s (%d "
      "bytes); give that or --store DIR",
      base::FormatBytes(flags.pinned_bytes), base::FormatBytes(all), all));
}

namespace {

// Replaces the names of the library's options in a message by those of the command's flags.
std::string InFlags(absl::string_view message) {
  return absl::StrReplaceAll(message, {{"open it with OpenMode::kOpenOrCreate", "add --resume"},
                                       {"EngineOptions::device_bytes", "--device-bytes"},
                                       {"EngineOptions::pinned_bytes", "--pinned-bytes"},
                                       {"Calibration::kNow", "--calibrate now"}});
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> OpenEngine(const EngineFlags& flags, OpenMode mode,
                                                   const StoreNeed& need,
                                                   const std::atomic<bool>& stop) {
  const EngineFlags defaults;
  if (flags.store.empty() &&
      (flags.io != defaults.io || flags.page_bytes != 0 || flags.calibrate != defaults.calibrate)) {
    absl::FPrintF(stderr,
                  "warning: --io, --page-bytes and --calibrate are about a store and do nothing "
                  "without --store\n");
  }
  EngineOptions options;
  options.store = flags.store;
  options.mode = mode;
  options.device = flags.device;
  options.store_bytes = flags.store_bytes;
  options.device_bytes = flags.device_bytes;
  options.pinned_bytes = flags.pinned_bytes;
  options.page_bytes = flags.page_bytes;
  options.io = flags.io;
  options.timeline_events = flags.timeline_events;
  options.calibration = CalibrationOf(flags.calibrate, need);
  options.plan_steps = flags.plan_steps;
  SPILLWAY_ASSIGN_OR_RETURN(options.placement, PlacementOf(flags.placement));
  options.stop = &stop;
  options.announce = [](std::string_view text) {
    absl::FPrintF(stderr, "note: %s\n", InFlags({text.data(), text.size()}));
  };
  if (mode == OpenMode::kScratch && !flags.store.empty())
    NameScratchStoreOnSecondInterrupt(flags.store);
  absl::StatusOr<std::unique_ptr<Engine>> engine = Engine::Open(std::move(options));
  if (engine.ok()) return engine;
  const absl::Status status(engine.status().code(), InFlags(engine.status().message()));
  // An argument that Open finds invalid was given by a flag, so it is a usage error.
  return absl::IsInvalidArgument(status) ? WithExitCode(status, ExitCode::kUsage) : status;
}

}  // namespace spillway::command
