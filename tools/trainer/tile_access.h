// SPDX-License-Identifier: Apache-2.0
//
// The one door through which the model leases tiles. Its idea: a phase of training leases the same
// tiles in the same order every time, so the order is recorded the first time and declared to the
// engine from then on.

#ifndef SPILLWAY_TOOLS_TRAINER_TILE_ACCESS_H_
#define SPILLWAY_TOOLS_TRAINER_TILE_ACCESS_H_

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spillway/engine.h"

namespace spillway::trainer {

// Runs of the model that lease alike.
enum class Phase : uint8_t { kTrain, kLoss, kNextToken };
inline constexpr int kNumPhases = 3;

// Thread-compatible; the engine must outlive it. The model holds at most one lease at a time, so
// that a device budget of one tile is enough.
class TileAccess {
 public:
  explicit TileAccess(Engine* engine) : engine_(engine) {}

  Engine* engine() const { return engine_; }

  // Starts a phase. What comes before the recorded part (uses that depend on the batch's tokens) is
  // given by the caller, as is what follows the phase. Declares nothing before the phase has run
  // once.
  absl::Status Begin(Phase phase, std::span<const Use> before, std::span<const Use> next);
  // Ends a phase that ran to its end; after a failure just Begin another.
  void Finish();

  // A lease in the device tier that belongs to the phase's fixed order.
  absl::StatusOr<Lease> Acquire(TileRef tile, Access access);
  // One that depends on the batch: declared by Begin's caller, not recorded.
  absl::StatusOr<Lease> AcquireForBatch(TileRef tile, Access access) {
    return engine_->Acquire(tile, access);
  }

 private:
  struct Record {
    std::vector<Use> uses;
    bool complete = false;
  };

  Engine* const engine_;
  std::array<Record, kNumPhases> records_;
  Record* recording_ = nullptr;  // null: the phase is known
};

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_TILE_ACCESS_H_
