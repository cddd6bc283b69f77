// SPDX-License-Identifier: Apache-2.0
//
// The flags that train, eval and generate share: where bytes rest and within which budgets. Checked
// against what a model needs before anything is opened, so that a refusal costs nothing and names
// the figure that works.

#ifndef SPILLWAY_TOOLS_SPILLWAY_TRAIN_ENGINE_FLAGS_H_
#define SPILLWAY_TOOLS_SPILLWAY_TRAIN_ENGINE_FLAGS_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spillway/engine.h"
#include "src/plan/keep.h"
#include "tools/hf/config.h"
#include "tools/spillway/command/arguments.h"
#include "tools/spillway/train/placement_flags.h"
#include "tools/spillway/train/store_room.h"
#include "tools/trainer/model.h"

namespace spillway::command {

// kAuto measures a new store's devices if the state is large enough to gain by it.
enum class CalibrateChoice : uint8_t { kAuto, kNow, kOff };

struct EngineFlags {
  std::vector<std::string> store;  // folders; none: everything in memory
  uint64_t store_bytes = kUnlimited;
  uint64_t device_bytes = kUnlimited;
  uint64_t pinned_bytes = kUnlimited;
  uint64_t page_bytes = 0;  // 0: the engine's choice, or the store's
  IoKind io = IoKind::kAuto;
  Device device = Device::Host();
  CalibrateChoice calibrate = CalibrateChoice::kAuto;
  std::optional<plan::Policy> policy = plan::Policy::kPlanned;  // none: nothing is planned
  PlacementFlags placement;
  uint64_t timeline_events = 0;  // see EngineOptions; no flag of its own
  int64_t threads = 0;           // 0 until AddEngineFlags puts the number of cores
};

void AddEngineFlags(CLI::App* app, EngineFlags* flags, const std::string& store_help);

// Usage errors, and what this machine cannot do.
absl::Status CheckEngineFlags(const EngineFlags& flags);

// What the flags say of the store's room.
StorePlace PlaceOf(const EngineFlags& flags);

// UsageError if a budget cannot hold the tiles leased together beside those that are placed there,
// naming the smallest that does; likewise --store-bytes. A failure, not a usage error, if the file
// systems of the store have too little free space.
absl::Status CheckRoom(const EngineFlags& flags, const hf::ModelConfig& config,
                       const trainer::ModelOptions& options, const StoreNeed& need);

// Opens the engine; what the machine could not give is noted on stderr. Cancelled if `stop` becomes
// true while devices are measured.
absl::StatusOr<std::unique_ptr<Engine>> OpenEngine(const EngineFlags& flags, OpenMode mode,
                                                   const StoreNeed& need,
                                                   const std::atomic<bool>& stop);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_TRAIN_ENGINE_FLAGS_H_
