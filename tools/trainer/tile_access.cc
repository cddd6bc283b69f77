// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/tile_access.h"

#include <cstddef>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spillway/engine.h"
#include "tools/hf/status_macros.h"

namespace spillway::trainer {

absl::Status TileAccess::Begin(Phase phase, std::span<const Use> before,
                               std::span<const Use> next) {
  Record& record = records_[static_cast<size_t>(phase)];
  engine_->ClearPrefetch();
  if (!record.complete) {
    record.uses.clear();
    recording_ = &record;
    return absl::OkStatus();
  }
  recording_ = nullptr;
  SPILLWAY_HF_RETURN_IF_ERROR(engine_->Prefetch(before));
  SPILLWAY_HF_RETURN_IF_ERROR(engine_->Prefetch(record.uses));
  return engine_->Prefetch(next);
}

void TileAccess::Finish() {
  if (recording_ != nullptr) recording_->complete = true;
  recording_ = nullptr;
}

absl::StatusOr<Lease> TileAccess::Acquire(TileRef tile, Access access) {
  if (recording_ != nullptr) recording_->uses.push_back({tile, Tier::kDevice, access});
  return engine_->Acquire(tile, access);
}

}  // namespace spillway::trainer
