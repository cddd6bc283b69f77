// SPDX-License-Identifier: Apache-2.0
//
// The flags that train, eval and generate share: where bytes rest and within which budgets. They
// are checked against the needs of the model before anything is opened. So an error costs no time,
// and it names the figure that works.

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
#include "tools/hf/config.h"
#include "tools/spillway/command/arguments.h"
#include "tools/spillway/train/placement_flags.h"
#include "tools/spillway/train/store_room.h"
#include "tools/trainer/model.h"

namespace spillway::command {

// kAuto measures the devices that were not measured yet, if the state is large enough to gain by
// it.
enum class CalibrateChoice : uint8_t { kAuto, kNow, kOff };

struct EngineFlags {
  std::vector<std::string> store;  // folders; empty: everything in memory
  uint64_t store_bytes = kUnlimited;
  uint64_t device_bytes = kUnlimited;
  uint64_t pinned_bytes = kUnlimited;
  uint64_t page_bytes = 0;  // 0: the engine's choice, or the store's
  IoKind io = IoKind::kAuto;
  Device device = Device::Host();
  std::string cublaslt;  // the library of a GPU's products; empty: it is looked for
  CalibrateChoice calibrate = CalibrateChoice::kAuto;
  bool plan_steps = true;
  PlacementFlags placement;
  uint64_t timeline_events = 0;  // see EngineOptions; it has no flag of its own
  int64_t threads = 0;           // 0 until AddEngineFlags sets it to the number of cores
};

void AddEngineFlags(CLI::App* app, EngineFlags* flags, const std::string& store_help);

// Checks the flags by themselves. UsageError: they are wrong or contradict each other.
absl::Status CheckEngineFlags(const EngineFlags& flags);

// Returns the folders and limits of the store that the flags give.
StorePlace PlaceOf(const EngineFlags& flags);

// The tiles of a new run within the budgets. UsageError: the placement is not one.
absl::StatusOr<trainer::TileSizes> TilesFor(const EngineFlags& flags, const hf::ModelConfig& config,
                                            const trainer::ModelOptions& options);

// Checks the budgets. UsageError if a budget cannot hold the tiles that are leased together beside
// those that are placed there, or if --store-bytes, or --pinned-bytes without a store, cannot hold
// the state. The message names the smallest budget that works. If the store's file systems have too
// little free space, the error is a failure, not a usage error.
absl::Status CheckRoom(const EngineFlags& flags, const hf::ModelConfig& config,
                       const trainer::ModelOptions& options, const StoreNeed& need);

// Opens the engine. Reports on stderr what the machine could not provide, and flags that do
// nothing. Cancelled if `stop` becomes true while devices are measured. A second interrupt names
// a scratch store that it leaves.
absl::StatusOr<std::unique_ptr<Engine>> OpenEngine(const EngineFlags& flags, OpenMode mode,
                                                   const StoreNeed& need,
                                                   const std::atomic<bool>& stop);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_TRAIN_ENGINE_FLAGS_H_
