// SPDX-License-Identifier: Apache-2.0
//
// The facade: checks the callers' arguments, and passes tiles and leases to the mover.
// TensorRegistry holds the tensors, and engine_parts.cc makes the parts that the mover works with.

#include "spillway/engine.h"

#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "io/make_io_engine.h"
#include "io/store/store.h"
#include "src/base/bytes.h"
#include "src/base/forks.h"
#include "src/base/mutex.h"
#include "src/base/status_macros.h"
#include "src/engine/engine_parts.h"
#include "src/engine/engine_stream.h"
#include "src/engine/mover.h"
#include "src/engine/recorded_step.h"
#include "src/engine/resting_room.h"
#include "src/engine/tensor_registry.h"
#include "tiers/device_runtime.h"

namespace spillway {
namespace {

using engine::EngineStream;
using engine::Grant;
using engine::kNoStream;
using engine::Mover;
using engine::StreamId;
using engine::TileIndex;

}  // namespace

class EngineImpl final : public Engine {
 public:
  friend absl::StatusOr<std::unique_ptr<Engine>> engine::OpenEngine(EngineOptions,
                                                                    const engine::OpenChoices&);
  friend absl::StatusOr<engine::RecordedStep> engine::LastStep(Engine*, size_t);
  ~EngineImpl() override;

  const TensorSpec& Spec(TensorId id) const override { return tensors_.Spec(id); }
  absl::Status CheckTile(TileRef tile) const override { return Index(tile).status(); }
  absl::Status CheckProcess() const override;
  uint64_t page_bytes() const override { return page_bytes_; }
  const EngineOptions& options() const override { return options_; }
  absl::StatusOr<Lease> Acquire(TileRef tile, Access access, Stream* stream) override;
  absl::StatusOr<Lease> AcquireHost(TileRef tile, Access access) override;
  absl::StatusOr<TensorId> Register(const TensorSpec& spec, const Reader& reader) override;
  absl::Status Unregister(TensorId id) override;
  absl::Status ForgetName(std::string_view name) override;
  absl::StatusOr<TensorId> Find(std::string_view name) const override;
  absl::Status Prefetch(std::span<const Use> uses) override;
  void ClearPrefetch() override;
  absl::Status Evict(TileRef tile) override;
  absl::Status Discard(TileRef tile) override;
  absl::Status EndStep() override;
  absl::Status WaitForPlan() override;
  absl::Status Commit(std::string_view user_state) override;
  std::optional<std::string> UserState() const override {
    if (process_.is_forked()) return std::nullopt;
    base::MutexLock lock(&mu_);
    return user_state_;
  }
  uint64_t CommitNumber() const override;
  std::string StoreId() const override { return store_id_; }
  absl::Status Snapshot(std::string_view label) override;
  absl::StatusOr<std::vector<SnapshotInfo>> Snapshots() override;
  absl::Status Restore(std::string_view label) override;
  absl::Status Drop(std::string_view label) override;
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream() override;
  absl::StatusOr<std::unique_ptr<Stream>> WrapStream(void* native) override;
  EngineStats Stats() const override;
  Timeline TakeTimeline() override;

 protected:
  void EndLease(const Lease& lease) override;

 private:
  absl::StatusOr<TileIndex> Index(TileRef tile) const;
  // Leases a tile. REQUIRES: `index` is the tile's.
  absl::StatusOr<Lease> TakeAt(TileIndex index, TileRef tile, Tier tier, Access access,
                               Stream* stream);
  absl::Status CheckHasStore(std::string_view what) const;
  void Announce(std::string_view what);
  engine::TransferThread& transfers() const { return mover_->transfers(); }

  const base::ForkGuard process_;
  const pid_t pid_ = getpid();
  engine::TensorRegistry tensors_;
  std::unique_ptr<Mover> mover_;  // its threads use this object, so the destructor ends it first

  // Constant after Open.
  uint64_t page_bytes_ = 0;
  EngineOptions options_;
  bool has_store_ = false;
  std::string io_name_;
  std::string store_id_;
  std::vector<DriveStats> drives_;

  mutable base::Mutex mu_;
  std::optional<std::string> user_state_ ABSL_GUARDED_BY(mu_);
  uint64_t commits_ ABSL_GUARDED_BY(mu_) = 0;

  std::vector<std::string> fallbacks_ ABSL_GUARDED_BY(mu_);
};

absl::StatusOr<std::unique_ptr<Engine>> Engine::Open(EngineOptions options) {
  return engine::OpenEngine(std::move(options), {});
}

absl::StatusOr<std::unique_ptr<Engine>> engine::OpenEngine(EngineOptions options,
                                                           const OpenChoices& choices) {
  auto engine = std::make_unique<EngineImpl>();
  EngineImpl* self = engine.get();
  const auto announce = [self](std::string_view what) { self->Announce(what); };
  engine->options_ = options;
  SPILLWAY_ASSIGN_OR_RETURN(engine::MoverParts parts,
                            engine::MakeMoverParts(options, choices.make_io, announce));
  engine->page_bytes_ = engine::PageBytes(options);
  if (parts.store != nullptr) {
    engine->page_bytes_ = parts.store->page_bytes();
    base::MutexLock lock(&engine->mu_);
    engine->user_state_ = parts.store->UserState();
    engine->io_name_ = std::string(parts.io->name());
    engine->store_id_ = parts.store->id();
    engine->drives_ = engine::DrivesOf(options, *parts.store);
    engine->has_store_ = true;
  }
  engine::PagerOptions paging;
  paging.device_bytes = parts.device_bytes;
  paging.pinned_bytes = parts.pinned->size_bytes();
  paging.has_store = engine->has_store_;
  paging.placement = options.placement;
  engine::RestingRoom rests(options.placement, paging.device_bytes, paging.pinned_bytes);
  paging.describe = [self](TileIndex tile) { return self->tensors_.DescribeTile(tile); };
  plan::ChooseRetained* const choose = options.plan_steps ? choices.choose_retained : nullptr;
  SPILLWAY_ASSIGN_OR_RETURN(engine->mover_,
                            Mover::Create(std::move(parts), std::move(paging), choose));
  engine->tensors_.Begin(engine->mover_.get(), engine->has_store_, engine->page_bytes_,
                         std::move(rests));
  return std::unique_ptr<Engine>(std::move(engine));
}

absl::StatusOr<engine::RecordedStep> engine::LastStep(Engine* engine, size_t most_events) {
  SPILLWAY_RETURN_IF_ERROR(engine->CheckProcess());
  return static_cast<EngineImpl*>(engine)->mover_->LastStep(most_events);
}

// The mover's threads use this object, so they end first. In a forked process they do not exist and
// cannot be ended, so the mover is leaked.
EngineImpl::~EngineImpl() {
  [[maybe_unused]] const Mover* const left = process_.is_forked() ? mover_.release() : nullptr;
  mover_.reset();
}

void EngineImpl::Announce(std::string_view what) {
  {
    base::MutexLock lock(&mu_);
    if (std::find(fallbacks_.begin(), fallbacks_.end(), what) != fallbacks_.end()) return;
    fallbacks_.emplace_back(what);
  }
  if (options_.announce) options_.announce(what);
}

absl::Status EngineImpl::CheckProcess() const {
  if (!process_.is_forked()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "process ", getpid(), " was forked from process ", pid_,
      ", which opened this engine: only that one can use it. Start processes that need an engine "
      "without fork (Python: multiprocessing's 'spawn'), or open one there"));
}

// --- Leases ---

absl::StatusOr<TileIndex> EngineImpl::Index(TileRef tile) const {
  SPILLWAY_RETURN_IF_ERROR(CheckProcess());
  return tensors_.IndexOf(tile);
}

absl::StatusOr<Lease> EngineImpl::Acquire(TileRef tile, Access access, Stream* stream) {
  SPILLWAY_ASSIGN_OR_RETURN(const TileIndex index, Index(tile));
  return TakeAt(index, tile, Tier::kDevice, access, stream);
}

absl::StatusOr<Lease> EngineImpl::AcquireHost(TileRef tile, Access access) {
  SPILLWAY_ASSIGN_OR_RETURN(const TileIndex index, Index(tile));
  return TakeAt(index, tile, Tier::kPinned, access, nullptr);
}

absl::StatusOr<Lease> EngineImpl::TakeAt(TileIndex index, TileRef tile, Tier tier, Access access,
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

void EngineImpl::EndLease(const Lease& lease) {
  if (process_.is_forked()) return;
  const auto handle = EngineStream::HandleOf(lease.stream_, transfers().runtime());
  // This engine cannot track another engine's stream, so it waits for the stream here.
  if (!handle.ok()) {
    const absl::Status status = lease.stream_->Synchronize();
    if (!status.ok()) transfers().NoteFailedWait(status);
  }
  mover_->EndLease(tensors_.FirstTile(lease.tile_.tensor) + lease.tile_.tile, lease.tier_,
                   lease.access_, handle.ok() ? *handle : nullptr);
}

// --- Tensors ---

absl::StatusOr<TensorId> EngineImpl::Register(const TensorSpec& spec, const Reader& reader) {
  SPILLWAY_RETURN_IF_ERROR(CheckProcess());
  if (!reader) return tensors_.Register(spec, nullptr);
  return tensors_.Register(spec, [&](TileIndex index, TileRef tile) -> absl::Status {
    SPILLWAY_ASSIGN_OR_RETURN(Lease lease,
                              TakeAt(index, tile, Tier::kPinned, Access::kDiscard, nullptr));
    return reader(spec.tile_offset_bytes(tile.tile), lease.as<std::byte>());
  });
}

absl::Status EngineImpl::Unregister(TensorId id) {
  SPILLWAY_RETURN_IF_ERROR(CheckProcess());
  return tensors_.Unregister(id);
}

absl::Status EngineImpl::ForgetName(std::string_view name) {
  SPILLWAY_RETURN_IF_ERROR(CheckProcess());
  return tensors_.ForgetName(name);
}

absl::StatusOr<TensorId> EngineImpl::Find(std::string_view name) const {
  SPILLWAY_RETURN_IF_ERROR(CheckProcess());
  return tensors_.Find(name);
}

// --- Steps and hints ---

void EngineImpl::ClearPrefetch() {
  if (!process_.is_forked()) mover_->ClearDeclared();
}

absl::Status EngineImpl::EndStep() {
  SPILLWAY_RETURN_IF_ERROR(CheckProcess());
  return mover_->EndStep();
}

absl::Status EngineImpl::WaitForPlan() {
  SPILLWAY_RETURN_IF_ERROR(CheckProcess());
  return mover_->WaitForPlan();
}

absl::Status EngineImpl::Prefetch(std::span<const Use> uses) {
  SPILLWAY_RETURN_IF_ERROR(CheckProcess());
  std::vector<TileIndex> tiles;
  tiles.reserve(uses.size());
  for (const Use& use : uses) {
    SPILLWAY_ASSIGN_OR_RETURN(const TileIndex index, Index(use.tile));
    if (use.tier == Tier::kNvme) {
      return absl::InvalidArgumentError(
          "a use is in the device or the pinned tier: nothing is used on NVMe");
    }
    tiles.push_back(index);
  }
  return mover_->Declare(tiles, uses);
}

absl::Status EngineImpl::Evict(TileRef tile) {
  SPILLWAY_ASSIGN_OR_RETURN(const TileIndex index, Index(tile));
  return mover_->Evict(index);
}

absl::Status EngineImpl::Discard(TileRef tile) {
  SPILLWAY_ASSIGN_OR_RETURN(const TileIndex index, Index(tile));
  if (!Spec(tile.tensor).transient) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor '", Spec(tile.tensor).name, "' is not transient: its bytes are kept"));
  }
  return mover_->Discard(index);
}

absl::StatusOr<std::unique_ptr<Stream>> EngineImpl::CreateStream() {
  SPILLWAY_RETURN_IF_ERROR(CheckProcess());
  SPILLWAY_ASSIGN_OR_RETURN(const tiers::StreamHandle handle, transfers().runtime().CreateStream());
  return std::make_unique<EngineStream>(&transfers().runtime(), handle);
}

absl::StatusOr<std::unique_ptr<Stream>> EngineImpl::WrapStream(void* native) {
  SPILLWAY_RETURN_IF_ERROR(CheckProcess());
  SPILLWAY_ASSIGN_OR_RETURN(const tiers::StreamHandle handle,
                            transfers().runtime().WrapStream(native));
  return std::make_unique<EngineStream>(&transfers().runtime(), handle);
}

// --- Durability ---

absl::Status EngineImpl::CheckHasStore(std::string_view what) const {
  SPILLWAY_RETURN_IF_ERROR(CheckProcess());
  if (has_store_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(std::string(what), " without a store: give EngineOptions::store a folder"));
}

// 1. Writes to NVMe, out of place, every tile of the commit that is not there yet.
// 2. The store syncs the data, then switches its catalog in one transaction (io/store/store.h).
absl::Status EngineImpl::Commit(std::string_view user_state) {
  SPILLWAY_RETURN_IF_ERROR(CheckHasStore("Commit"));
  return mover_->Commit([&](io::Store* store) {
    SPILLWAY_RETURN_IF_ERROR(store->Commit(user_state));
    base::MutexLock lock(&mu_);
    user_state_ = std::string(user_state);
    ++commits_;
    return absl::OkStatus();
  });
}

absl::Status EngineImpl::Snapshot(std::string_view label) {
  SPILLWAY_RETURN_IF_ERROR(CheckHasStore("Snapshot"));
  SPILLWAY_RETURN_IF_ERROR(mover_->CheckNoLeases("Snapshot"));
  absl::Status status;
  transfers().RunWithStore([&](io::Store* store) { status = store->Snapshot(label); });
  return status;
}

absl::StatusOr<std::vector<SnapshotInfo>> EngineImpl::Snapshots() {
  SPILLWAY_RETURN_IF_ERROR(CheckHasStore("Snapshots"));
  absl::StatusOr<std::vector<io::SnapshotRecord>> records;
  transfers().RunWithStore([&](io::Store* store) { records = store->Snapshots(); });
  if (!records.ok()) return records.status();
  std::vector<SnapshotInfo> snapshots;
  for (io::SnapshotRecord& record : *records) {
    snapshots.push_back({std::move(record.label), record.number, std::move(record.time),
                         std::move(record.user_state)});
  }
  return snapshots;
}

absl::Status EngineImpl::Restore(std::string_view label) {
  SPILLWAY_RETURN_IF_ERROR(CheckHasStore("Restore"));
  const auto go_back = [&](io::Store* store) {
    const absl::Status status = store->Restore(label);
    base::MutexLock lock(&mu_);
    if (status.ok()) user_state_ = store->UserState();
    return status;
  };
  return tensors_.WhileNoneChanges([&] { return mover_->Restore(go_back); });
}

absl::Status EngineImpl::Drop(std::string_view label) {
  SPILLWAY_RETURN_IF_ERROR(CheckHasStore("Drop"));
  absl::Status status;
  transfers().RunWithStore([&](io::Store* store) { status = store->Drop(label); });
  return status;
}

uint64_t EngineImpl::CommitNumber() const {
  uint64_t number = 0;
  if (has_store_ && !process_.is_forked())
    transfers().RunWithStore([&](io::Store* store) { number = store->commit_number(); });
  return number;
}

EngineStats EngineImpl::Stats() const {
  if (process_.is_forked()) return {};
  EngineStats stats = mover_->Stats();
  stats.placement = options_.placement;
  stats.io_engine = io_name_;
  stats.device = transfers().runtime().name();
  stats.drives = drives_;
  base::MutexLock lock(&mu_);
  stats.commits = commits_;
  stats.fallbacks = fallbacks_;
  return stats;
}

Timeline EngineImpl::TakeTimeline() {
  if (process_.is_forked()) return {};
  Timeline timeline = mover_->TakeTimeline();
  if (options_.timeline_events == 0) return timeline;
  timeline.tensors = tensors_.Tensors();
  timeline.budget_bytes = {options_.device_bytes, options_.pinned_bytes, options_.store_bytes};
  return timeline;
}

}  // namespace spillway
