// SPDX-License-Identifier: Apache-2.0

#include "src/engine/leasing_engine.h"

#include "absl/strings/str_cat.h"
#include "src/base/status_macros.h"
#include "src/engine/engine_stream.h"
#include "tiers/device_runtime.h"

namespace spillway {

using engine::EngineStream;
using engine::Grant;
using engine::kNoStream;
using engine::StreamId;
using engine::TileIndex;

absl::Status LeasingEngine::CheckProcess() const {
  if (!process_.is_forked()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "process ", getpid(), " was forked from process ", pid_,
      ", which opened this engine: only that one can use it. Start processes that need an engine "
      "without fork (Python: multiprocessing's 'spawn'), or open one there"));
}

absl::StatusOr<TileIndex> LeasingEngine::Index(TileRef tile) const {
  SPILLWAY_RETURN_IF_ERROR(CheckProcess());
  return tensors_.IndexOf(tile);
}

absl::StatusOr<Lease> LeasingEngine::Acquire(TileRef tile, Access access, Stream* stream) {
  SPILLWAY_ASSIGN_OR_RETURN(const TileIndex index, Index(tile));
  return TakeAt(index, tile, Tier::kDevice, access, stream);
}

absl::StatusOr<Lease> LeasingEngine::AcquireHost(TileRef tile, Access access) {
  SPILLWAY_ASSIGN_OR_RETURN(const TileIndex index, Index(tile));
  return TakeAt(index, tile, Tier::kPinned, access, nullptr);
}

absl::StatusOr<Lease> LeasingEngine::TakeAt(TileIndex index, TileRef tile, Tier tier, Access access,
                                            Stream* stream) {
  SPILLWAY_ASSIGN_OR_RETURN(const tiers::StreamHandle* const handle,
                            EngineStream::HandleOf(stream, transfers().runtime()));
  const StreamId on = handle != nullptr ? handle->value : kNoStream;
  if (handle != nullptr) SPILLWAY_RETURN_IF_ERROR(transfers().runtime().CheckStream(*handle));
  SPILLWAY_ASSIGN_OR_RETURN(Grant granted, mover_->Acquire(index, tier, access, on));
  Lease lease;
  lease.engine_ = this;
  lease.data_ = granted.data;
  lease.size_bytes_ = Spec(tile.tensor).tile_bytes(tile.tile);
  lease.tile_ = tile;
  lease.tier_ = tier;
  lease.access_ = access;
  lease.stream_ = stream;
  if (granted.arrival.value != nullptr) {
    tiers::DeviceRuntime& runtime = transfers().runtime();
    const absl::Status status = runtime.Wait(*handle, granted.arrival);
    runtime.DestroyEvent(granted.arrival);
    if (!status.ok()) {
      lease.Release(nullptr);  // nothing was launched with it
      return status;
    }
  }
  return lease;
}

void LeasingEngine::EndLease(const Lease& lease) {
  if (process_.is_forked()) return;
  const auto handle = EngineStream::HandleOf(lease.stream_, transfers().runtime());
  // This engine cannot track another engine's stream, so it waits for the stream here.
  if (!handle.ok()) {
    const absl::Status status = lease.stream_->Synchronize();
    if (!status.ok()) transfers().NoteFailedWait(status);
  }
  mover_->EndLease(IndexOf(lease), lease.tier_, lease.access_, handle.ok() ? *handle : nullptr);
}

}  // namespace spillway
