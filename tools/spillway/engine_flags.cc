// SPDX-License-Identifier: Apache-2.0
//
// The engine's flags, their checks, and the engine opened with them.

#include "tools/spillway/engine_flags.h"

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <set>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "src/base/bytes.h"
#include "src/base/status_macros.h"
#include "tools/spillway/arguments.h"
#include "tools/spillway/exit_code.h"

namespace spillway::command {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMostThreads = 1024;
constexpr uint64_t kLeastPageBytes = 4 * kKiB;
constexpr uint64_t kMostPageBytes = kGiB;

// Free bytes of the file systems that hold the folders (each counted once), and the bytes that
// files in the folders have already, which a store uses again.
uint64_t AvailableBytes(const std::vector<std::string>& folders) {
  uint64_t available = 0;
  std::set<dev_t> seen;
  for (const std::string& folder : folders) {
    std::error_code error;
    fs::path existing = fs::absolute(folder, error);
    while (!fs::exists(existing, error) && existing.has_relative_path()) {
      existing = existing.parent_path();
    }
    struct stat info{};
    struct statvfs space{};
    if (stat(existing.c_str(), &info) != 0 || statvfs(existing.c_str(), &space) != 0) continue;
    if (seen.insert(info.st_dev).second) available += uint64_t{space.f_bavail} * space.f_frsize;
    if (!fs::is_directory(folder, error)) continue;
    for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
      if (stat(entry.path().c_str(), &info) == 0 && S_ISREG(info.st_mode)) {
        available += static_cast<uint64_t>(info.st_blocks) * 512;
      }
    }
  }
  return available;
}

absl::Status CheckBudget(std::string_view flag, uint64_t given, uint64_t smallest) {
  if (given >= smallest) return absl::OkStatus();
  return UsageError(absl::StrFormat(
      "%s %s is too small for this model, sequence and batch; the smallest that works is %s "
      "(%d bytes)",
      std::string(flag), base::FormatBytes(given), base::FormatBytes(smallest), smallest));
}

// What a store must have room for, at its fullest.
struct RoomNeeded {
  uint64_t state = 0;      // one copy of what a commit holds
  uint64_t spilled = 0;    // gradients and activations, unless pinned memory holds everything
  uint64_t in_flight = 0;  // new copies of pages whose old ones are not free yet
  int copies = 1;

  uint64_t total() const { return copies * state + spilled + in_flight; }
};

RoomNeeded NeededRoom(const EngineFlags& flags, const StoreNeed& need) {
  RoomNeeded room;
  room.state = need.state.committed_room;
  room.copies = need.keeps_old_copy ? 2 : 1;
  const uint64_t all = need.state.committed_room + need.state.transient_room;
  if (flags.pinned_bytes >= all) return room;
  const EngineOptions defaults;
  const uint64_t page_bytes = flags.page_bytes > 0 ? flags.page_bytes : kMiB;
  room.spilled = need.state.transient_room;
  room.in_flight = std::min(all, defaults.queue_depth * page_bytes);
  return room;
}

std::string Explain(const RoomNeeded& room) {
  std::string text = absl::StrFormat("the training state takes %s", base::FormatBytes(room.state));
  if (room.copies == 2)
    text += ", twice, because the last commit is kept until the next is complete";
  if (room.spilled > 0) {
    text += absl::StrFormat(
        ", and %s of gradients, activations and pages in flight may not fit in memory",
        base::FormatBytes(room.spilled + room.in_flight));
  }
  return text;
}

absl::Status CheckStoreRoom(const EngineFlags& flags, const StoreNeed& need) {
  const RoomNeeded room = NeededRoom(flags, need);
  const uint64_t needed = room.total();
  if (flags.store_bytes < needed) {
    return UsageError(absl::StrFormat(
        "--store-bytes %s is too small: %s; give at least %s (%d bytes)",
        base::FormatBytes(flags.store_bytes), Explain(room), base::FormatBytes(needed), needed));
  }
  const uint64_t available = AvailableBytes(flags.store);
  if (available >= needed) return absl::OkStatus();
  const absl::Status full = absl::ResourceExhaustedError(
      absl::StrFormat("%s: %s free, but %s are needed: %s; free some space or give other folders",
                      absl::StrJoin(flags.store, ", "), base::FormatBytes(available),
                      base::FormatBytes(needed), Explain(room)));
  return WithExitCode(full, ExitCode::kFailed);
}

}  // namespace

void AddEngineFlags(CLI::App* app, EngineFlags* flags) {
  if (flags->threads == 0) flags->threads = std::max(1U, std::thread::hardware_concurrency());
  AddList(app, "--store", &flags->store,
          "Folders for the store, one per drive: DIR or DIR,DIR. None: all in memory");
  AddSize(app, "--store-bytes", &flags->store_bytes,
          "Most bytes of tensors in the store (free space if not given)");
  AddSize(app, "--device-bytes", &flags->device_bytes,
          "Budget of the device tier, or unlimited (default)");
  AddSize(app, "--pinned-bytes", &flags->pinned_bytes,
          "Budget of pinned host memory, or unlimited (default)");
  AddSize(app, "--page-bytes", &flags->page_bytes,
          "Unit of transfers and checksums, a multiple of 4KiB; fixed for the life of a store");
  AddChoice<IoKind>(app, "--io", &flags->io,
                    {{"uring", IoKind::kUring}, {"posix", IoKind::kPosix}, {"auto", IoKind::kAuto}},
                    "How bytes reach the store's files");
  AddChoice<DeviceChoice>(
      app, "--device", &flags->device,
      {{"host", DeviceChoice::kHost}, {"cuda", DeviceChoice::kCuda}, {"auto", DeviceChoice::kAuto}},
      "Where to compute; auto is the host until there are GPU kernels");
  AddInteger(app, "--threads", &flags->threads, 1, kMostThreads,
             "Threads that compute; another number gives other roundings, hence other numbers");
}

absl::Status CheckEngineFlags(const EngineFlags& flags) {
  if (flags.device == DeviceChoice::kCuda) {
    return absl::UnimplementedError(
        "--device cuda: this build has no GPU kernels yet; use --device host");
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
  return absl::OkStatus();
}

absl::Status CheckRoom(const EngineFlags& flags, const trainer::MinimumBudgets& smallest,
                       const StoreNeed& need) {
  SPILLWAY_RETURN_IF_ERROR(
      CheckBudget("--device-bytes", flags.device_bytes, smallest.device_bytes));
  SPILLWAY_RETURN_IF_ERROR(
      CheckBudget("--pinned-bytes", flags.pinned_bytes, smallest.pinned_bytes));
  if (!flags.store.empty()) return CheckStoreRoom(flags, need);
  const uint64_t all = need.state.committed_room + need.state.transient_room;
  if (flags.pinned_bytes >= all) return absl::OkStatus();
  return UsageError(absl::StrFormat(
      "--pinned-bytes %s is too small without a store: everything rests in pinned memory, %s (%d "
      "bytes); give that or --store DIR",
      base::FormatBytes(flags.pinned_bytes), base::FormatBytes(all), all));
}

absl::StatusOr<std::unique_ptr<Engine>> OpenEngine(const EngineFlags& flags, OpenMode mode) {
  EngineOptions options;
  options.store = flags.store;
  options.mode = mode;
  options.store_bytes = flags.store_bytes;
  options.device_bytes = flags.device_bytes;
  options.pinned_bytes = flags.pinned_bytes;
  options.page_bytes = flags.page_bytes;
  options.io = flags.io;
  options.announce = [](std::string_view text) {
    absl::FPrintF(stderr, "note: %s\n", std::string(text));
  };
  absl::StatusOr<std::unique_ptr<Engine>> engine = Engine::Open(std::move(options));
  // What Open calls an invalid argument is an option of this command.
  if (absl::IsInvalidArgument(engine.status())) {
    return WithExitCode(engine.status(), ExitCode::kUsage);
  }
  return engine;
}

}  // namespace spillway::command
