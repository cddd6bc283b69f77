// SPDX-License-Identifier: Apache-2.0

#include "src/engine/leasing_engine.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "io/checksum.h"
#include "src/base/status_macros.h"
#include "src/engine/engine_stream.h"
#include "src/engine/tile_checksums.h"
#include "tiers/device_runtime.h"

namespace spillway {

using engine::EngineStream;
using engine::Grant;
using engine::kNoStream;
using engine::StreamId;
using engine::TileChecksums;
using engine::TileIndex;
using ChecksumKind = TileChecksums::Kind;

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

// Compares a tile in pinned memory if it was not compared yet. A tile on the device was compared
// before it was copied there.
absl::StatusOr<Lease> LeasingEngine::TakeAt(TileIndex index, TileRef tile, Tier tier, Access access,
                                            Stream* stream) {
  SPILLWAY_ASSIGN_OR_RETURN(Lease lease, TakeUnchecked(index, tile, tier, access, stream));
  TileChecksums& checksums = transfers().checksums();
  const ChecksumKind kind = checksums.KindOf(index);
  if (kind == ChecksumKind::kExpected && tier == Tier::kPinned && access != Access::kDiscard) {
    checksums.SetComparedByUser(index, false);
    if (const absl::Status status = Compare(lease); !status.ok()) {
      if (Writes(access)) GiveUp(std::move(lease));
      return status;
    }
    checksums.Clear(index);
  } else if (kind != ChecksumKind::kNone && tier == Tier::kPinned && Writes(access)) {
    checksums.Clear(index);
  }
  return lease;
}

absl::StatusOr<Lease> LeasingEngine::TakeUnchecked(TileIndex index, TileRef tile, Tier tier,
                                                   Access access, Stream* stream) {
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

// --- Leases of bytes that were not compared ---

absl::StatusOr<Lease> LeasingEngine::AcquireUnchecked(TileRef tile, Access access,
                                                      std::vector<uint64_t>* checksums) {
  checksums->clear();
  SPILLWAY_ASSIGN_OR_RETURN(const TileIndex index, Index(tile));
  if (access == Access::kDiscard) return TakeAt(index, tile, Tier::kPinned, access, nullptr);
  TileChecksums& of = transfers().checksums();
  of.SetComparedByUser(index, true);
  SPILLWAY_ASSIGN_OR_RETURN(Lease lease,
                            TakeUnchecked(index, tile, Tier::kPinned, access, nullptr));
  // Stays empty if another reader has compared the pages meanwhile.
  if (of.KindOf(index) == ChecksumKind::kExpected) *checksums = of.Of(index);
  if (Writes(access)) of.Clear(index);
  return lease;
}

absl::Status LeasingEngine::ReadAgain(const Lease& lease, uint64_t page, uint64_t checksum) {
  return mover_->ReadAgain(IndexOf(lease), page, checksum, lease.data());
}

absl::Status LeasingEngine::Compare(const Lease& lease) {
  const std::vector<uint64_t> expected = transfers().checksums().Of(IndexOf(lease));
  for (uint64_t page = 0; page < expected.size(); ++page) {
    const uint64_t begin = page * page_bytes_;
    const uint64_t bytes = std::min(page_bytes_, lease.size_bytes() - begin);
    if (io::Checksum({lease.data() + begin, bytes}) == expected[page]) continue;
    SPILLWAY_RETURN_IF_ERROR(ReadAgain(lease, page, expected[page]));
  }
  return absl::OkStatus();
}

void LeasingEngine::SetChecked(const Lease& lease) {
  transfers().checksums().Clear(IndexOf(lease));
}

void LeasingEngine::Release(Lease lease, std::vector<uint64_t> checksums) {
  transfers().checksums().Set(IndexOf(lease), ChecksumKind::kComputed, std::move(checksums));
  lease.Release();
}

void LeasingEngine::GiveUp(Lease lease) {
  lease.engine_ = nullptr;
  if (!process_.is_forked()) mover_->GiveUp(IndexOf(lease), lease.access_);
}

}  // namespace spillway
