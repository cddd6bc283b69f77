// SPDX-License-Identifier: Apache-2.0

#include "src/engine/engine_parts.h"

#include <unistd.h>

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "io/io_engine_options.h"
#include "io/store/calibration.h"
#include "io/store/store.h"
#include "src/base/existing_folder.h"
#include "src/base/status_macros.h"
#include "tiers/make_device_runtime.h"

namespace spillway::engine {
namespace {

constexpr uint64_t kDefaultPageBytes = kMiB;
constexpr uint64_t kMaxPageBytes = kGiB;
constexpr uint64_t kSlabBytes = 256 * kMiB;
constexpr uint64_t kMaxTimelineEvents = 1'000'000'000;

uint64_t PhysicalMemoryBytes() {
  return static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) *
         static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

// The size of an arena: the budget, limited to the memory that the machine has. More could not be
// used, and reserving it would only cost addresses.
uint64_t ArenaBytes(uint64_t budget_bytes, uint64_t memory_bytes) {
  return std::min(budget_bytes, memory_bytes) / kFrameAlignment * kFrameAlignment;
}

absl::Status CheckOptions(const EngineOptions& options) {
  if (options.page_bytes % kFrameAlignment != 0 || options.page_bytes > kMaxPageBytes) {
    return absl::InvalidArgumentError(absl::StrCat(
        "page_bytes is ", options.page_bytes, ": it must be a multiple of 4096 and at most 1 GiB"));
  }
  if (options.queue_depth < 1 || options.queue_depth > 1024) {
    return absl::InvalidArgumentError(
        absl::StrCat("queue_depth is ", options.queue_depth, ": it must be from 1 to 1024"));
  }
  if (options.timeline_events > kMaxTimelineEvents) {
    return absl::InvalidArgumentError(absl::StrCat("timeline_events is ", options.timeline_events,
                                                   ": it must be at most ", kMaxTimelineEvents));
  }
  for (auto [name, bytes] :
       {std::pair("device_bytes", options.device_bytes), {"pinned_bytes", options.pinned_bytes}}) {
    if (bytes >= kFrameAlignment) continue;
    return absl::InvalidArgumentError(
        absl::StrCat(name, " is ", bytes, ": it must be at least 4096"));
  }
  for (int role = 0; role < kNumRoles; ++role) {
    if (options.placement[role] != Tier::kNvme || !options.store.empty()) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "placement of ", std::string(Name(static_cast<Role>(role))),
        ": nothing can rest on NVMe without a store: give EngineOptions::store a folder"));
  }
  return absl::OkStatus();
}

// Sets the I/O engine's queues from the devices' profiles. Measures the devices first if the
// options request it.
absl::Status SetQueues(const EngineOptions& options, const io::Announce& announce, io::Store& store,
                       io::IoEngine& io) {
  // Measuring takes at most a quarter of the pinned budget, none of which is in use yet.
  const uint64_t queue_bytes = std::min(
      std::clamp(options.pinned_bytes / 4, io::kLeastCalibrationBytes, io::kMostCalibrationBytes),
      options.pinned_bytes);
  const uint64_t file_bytes = std::min(io::CalibrationOptions().file_bytes, options.store_bytes);
  // Budgets that are smaller gain nothing from measured queues.
  const bool possible =
      queue_bytes >= io::kLeastCalibrationBytes && file_bytes >= io::kLeastCalibrationBytes;
  if (options.calibration == Calibration::kKeep || !possible) {
    io::ApplyProfiles(store, io);
    return absl::OkStatus();
  }
  const bool again = options.calibration == Calibration::kNow;
  const absl::Status status = io::CalibrateStore(
      store, options.store, io, again,
      {.file_bytes = file_bytes, .queue_bytes = queue_bytes, .stop = options.stop});
  if (status.ok() || again || absl::IsCancelled(status)) return status;
  if (announce) {
    announce(absl::StrCat(
        "not all of the store's devices could be measured, so default queue depths and "
        "request sizes are used where nothing was measured: ",
        status.message()));
  }
  for (uint16_t device = 0; device < store.num_devices(); ++device) {
    io.SetDepths(device, io::DefaultDepths(options.queue_depth));
  }
  io::ApplyProfiles(store, io);
  return absl::OkStatus();
}

// Makes the I/O engine and opens the store that it serves.
absl::Status OpenStore(const EngineOptions& options, const MakeIo& make_io,
                       const io::Announce& announce, MoverParts* parts) {
  io::IoEngineOptions io_options;
  io_options.queue_depth = options.queue_depth;
  const std::string folder = base::ExistingFolder(options.store.front());
  SPILLWAY_ASSIGN_OR_RETURN(parts->io, make_io(options.io, io_options, folder, announce));
  const io::StoreOptions store_options{.folders = options.store,
                                       .must_not_exist = options.mode != OpenMode::kOpenOrCreate,
                                       .scratch = options.mode == OpenMode::kScratch,
                                       .remove_if_empty = true,
                                       .max_bytes = options.store_bytes,
                                       .page_bytes = options.page_bytes,
                                       .announce = announce};
  SPILLWAY_ASSIGN_OR_RETURN(parts->store, io::Store::Open(store_options, parts->io.get()));
  return SetQueues(options, announce, *parts->store, *parts->io);
}

}  // namespace

std::vector<DriveStats> DrivesOf(const EngineOptions& options, const io::Store& store) {
  std::vector<DriveStats> drives;
  for (uint16_t device = 0; device < store.num_devices(); ++device) {
    const io::DeviceProfile profile = store.Profile(device).value_or(io::DeviceProfile{});
    drives.push_back({.folder = options.store[device],
                      .read_bytes_per_second = profile.read_bytes_per_second,
                      .write_bytes_per_second = profile.write_bytes_per_second});
  }
  return drives;
}

uint64_t PageBytes(const EngineOptions& options) {
  return options.page_bytes != 0 ? options.page_bytes : kDefaultPageBytes;
}

absl::StatusOr<MoverParts> MakeMoverParts(const EngineOptions& options, const MakeIo& make_io,
                                          const io::Announce& announce) {
  SPILLWAY_RETURN_IF_ERROR(CheckOptions(options));
  MoverParts parts;
  SPILLWAY_ASSIGN_OR_RETURN(parts.runtime, tiers::MakeDeviceRuntime(options.device));
  if (!options.store.empty())
    SPILLWAY_RETURN_IF_ERROR(OpenStore(options, make_io, announce, &parts));

  parts.slab_bytes = kSlabBytes;
  parts.timeline_events = options.timeline_events;
  parts.device_bytes = ArenaBytes(options.device_bytes, parts.runtime->usable_bytes());
  tiers::PinnedArenaOptions pinned;
  pinned.size_bytes = ArenaBytes(options.pinned_bytes, PhysicalMemoryBytes());
  pinned.slab_bytes = kSlabBytes;
  pinned.announce = announce;
  pinned.register_slab = [runtime = parts.runtime.get(),
                          io = parts.io.get()](std::span<std::byte> slab) {
    SPILLWAY_RETURN_IF_ERROR(runtime->RegisterHostMemory(slab));
    if (io != nullptr) io->AddBuffer(slab);
    return absl::OkStatus();
  };
  pinned.unregister_slab = [runtime = parts.runtime.get()](std::span<std::byte> slab) {
    runtime->UnregisterHostMemory(slab);
  };
  absl::StatusOr<std::unique_ptr<tiers::PinnedArena>> arena =
      tiers::PinnedArena::Create(std::move(pinned));
  if (!arena.ok()) return WithOption(arena.status(), "pinned_bytes");
  parts.pinned = *std::move(arena);
  return parts;
}

}  // namespace spillway::engine
