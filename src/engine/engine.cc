// SPDX-License-Identifier: Apache-2.0
//
// The facade: checks what callers give, knows tensors by name, and hands tiles to the mover. What
// the mover works with is made in engine_parts.cc.

#include "spillway/engine.h"

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "io/make_io_engine.h"
#include "io/store/store.h"
#include "src/base/bytes.h"
#include "src/base/mutex.h"
#include "src/base/status_macros.h"
#include "src/engine/engine_parts.h"
#include "src/engine/mover.h"
#include "src/engine/resting_room.h"

namespace spillway {
namespace {

using engine::Mover;
using engine::TileIndex;

absl::Status CheckSpec(const TensorSpec& spec) {
  const auto bad = [&](std::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("tensor '", spec.name, "': ", std::string(why)));
  };
  if (spec.name.empty() || spec.name.size() > 512) return bad("its name must have 1 to 512 bytes");
  uint64_t bytes = ElementBytes(spec.dtype);
  for (int64_t dimension : spec.shape) {
    if (dimension < 1) return bad(absl::StrCat("dimension ", dimension, " must be at least 1"));
    if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(dimension), &bytes) ||
        bytes > (uint64_t{1} << 62)) {
      return bad("its size overflows 2^62 bytes");
    }
  }
  if (spec.tile_rows < 0)
    return bad(absl::StrCat("tile_rows is ", spec.tile_rows, ": it must be 0 or more"));
  return absl::OkStatus();
}

// What the catalog keeps of a spec, and compares on reopening.
std::string DescribeSpec(const TensorSpec& spec) {
  return absl::StrCat("{\"dtype\":\"", std::string(Name(spec.dtype)), "\",\"shape\":[",
                      absl::StrJoin(spec.shape, ","), "],\"role\":\"", std::string(Name(spec.role)),
                      "\",\"tile_rows\":", spec.tile_rows, "}");
}

}  // namespace

// Streams as callers see them.
class StreamImpl final : public Stream {
 public:
  StreamImpl(tiers::DeviceRuntime* runtime, tiers::StreamHandle handle)
      : runtime_(runtime), handle_(handle) {}
  ~StreamImpl() override { runtime_->DestroyStream(handle_); }
  absl::Status Launch(std::function<void()> work) override {
    return runtime_->Launch(handle_, std::move(work));
  }
  absl::Status Synchronize() override { return runtime_->Synchronize(handle_); }
  void* native_handle() override { return runtime_->native_handle(handle_); }
  const tiers::StreamHandle& handle() const { return handle_; }

 private:
  tiers::DeviceRuntime* runtime_;
  tiers::StreamHandle handle_;
};

class EngineImpl final : public Engine {
 public:
  static absl::StatusOr<std::unique_ptr<Engine>> Open(EngineOptions options,
                                                      const engine::OpenChoices& choices);

  absl::StatusOr<TensorId> Register(const TensorSpec& spec, const Reader& reader) override;
  absl::Status Unregister(TensorId id) override;
  absl::StatusOr<TensorId> Find(std::string_view name) const override;
  const TensorSpec& Spec(TensorId id) const override { return tensors_[id.value].spec; }
  absl::StatusOr<Lease> Acquire(TileRef tile, Access access, Stream* stream) override;
  absl::StatusOr<Lease> AcquireHost(TileRef tile, Access access) override;
  absl::Status Prefetch(std::span<const Use> uses) override;
  void ClearPrefetch() override { mover_->ClearDeclared(); }
  absl::Status Evict(TileRef tile) override;
  absl::Status Discard(TileRef tile) override;
  absl::Status EndStep() override { return mover_->EndStep(); }
  absl::Status WaitForPlan() override {
    mover_->WaitForPlan();
    return absl::OkStatus();
  }
  absl::Status Commit(std::string_view user_state) override;
  std::optional<std::string> UserState() const override { return user_state_; }
  absl::Status Snapshot(std::string_view label) override;
  absl::StatusOr<std::vector<SnapshotInfo>> Snapshots() override;
  absl::Status Restore(std::string_view label) override;
  absl::Status Drop(std::string_view label) override;
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream() override;
  EngineStats Stats() const override;
  Timeline TakeTimeline() override;
  uint64_t page_bytes() const override { return page_bytes_; }

 protected:
  void EndLease(const Lease& lease) override;

 private:
  struct Tensor {
    TensorSpec spec;
    TileIndex first_tile = 0;
    io::TensorIndex stored_as = 0;  // in the store, if there is one
    bool is_gone = false;           // unregistered
  };

  absl::StatusOr<TileIndex> Index(TileRef tile) const;
  absl::StatusOr<Lease> Take(TileRef tile, Tier tier, Access access, Stream* stream);
  absl::StatusOr<bool> AddTiles(const TensorSpec& spec);
  absl::Status Fill(TensorId id, const Reader& reader);
  std::string DescribeTile(TileIndex tile) const;
  absl::Status CheckHasStore(std::string_view what) const;
  void Announce(std::string_view what);

  // Constant after Open.
  EngineOptions options_;
  uint64_t page_bytes_ = 0;
  bool has_store_ = false;
  std::string io_name_;

  // Changed by Register, Unregister and Commit alone, which exclude all else.
  engine::RestingRoom rests_;
  std::deque<Tensor> tensors_;
  std::map<std::string, TensorId, std::less<>> by_name_;
  std::optional<std::string> user_state_;
  uint64_t commits_ = 0;

  // Names of tiles for messages: the transfer thread asks while Register adds.
  mutable base::Mutex names_mu_;
  std::vector<std::pair<TileIndex, std::string>> names_
      ABSL_GUARDED_BY(names_mu_);  // first tile, name

  mutable base::Mutex announce_mu_;
  std::vector<std::string> fallbacks_ ABSL_GUARDED_BY(announce_mu_);

  std::unique_ptr<Mover> mover_;  // last: its thread ends first
};

absl::StatusOr<std::unique_ptr<Engine>> Engine::Open(EngineOptions options) {
  return engine::OpenEngine(std::move(options), {});
}

absl::StatusOr<std::unique_ptr<Engine>> engine::OpenEngine(EngineOptions options,
                                                           const OpenChoices& choices) {
  return EngineImpl::Open(std::move(options), choices);
}

absl::StatusOr<std::unique_ptr<Engine>> EngineImpl::Open(EngineOptions options,
                                                         const engine::OpenChoices& choices) {
  auto engine = std::make_unique<EngineImpl>();
  EngineImpl* self = engine.get();
  const auto announce = [self](std::string_view what) { self->Announce(what); };
  engine->options_ = options;
  SPILLWAY_ASSIGN_OR_RETURN(engine::MoverParts parts,
                            engine::MakeMoverParts(options, choices.make_io, announce));
  engine->page_bytes_ = engine::PageBytes(options);
  if (parts.store != nullptr) {
    engine->page_bytes_ = parts.store->page_bytes();
    engine->user_state_ = parts.store->UserState();
    engine->io_name_ = std::string(parts.io->name());
    engine->has_store_ = true;
  }
  engine::PagerOptions paging;
  paging.device_bytes = parts.device_bytes;
  paging.pinned_bytes = parts.pinned->size_bytes();
  paging.has_store = engine->has_store_;
  paging.placement = options.placement;
  engine->rests_ = engine::RestingRoom(options.placement, paging.device_bytes, paging.pinned_bytes);
  paging.describe = [self](TileIndex tile) { return self->DescribeTile(tile); };
  const std::optional<plan::Policy> policy =
      options.plan_steps ? std::optional(choices.policy) : std::nullopt;
  SPILLWAY_ASSIGN_OR_RETURN(engine->mover_,
                            Mover::Create(std::move(parts), std::move(paging), policy));
  return std::unique_ptr<Engine>(std::move(engine));
}

void EngineImpl::Announce(std::string_view what) {
  {
    base::MutexLock lock(&announce_mu_);
    if (std::find(fallbacks_.begin(), fallbacks_.end(), what) != fallbacks_.end()) return;
    fallbacks_.emplace_back(what);
  }
  if (options_.announce) options_.announce(what);
}

std::string EngineImpl::DescribeTile(TileIndex tile) const {
  base::MutexLock lock(&names_mu_);
  auto after =
      std::upper_bound(names_.begin(), names_.end(), tile,
                       [](TileIndex index, const auto& entry) { return index < entry.first; });
  if (after == names_.begin()) return absl::StrCat("tile ", tile);
  const auto& [first, name] = *std::prev(after);
  return absl::StrCat("tensor '", name, "' tile ", tile - first);
}

// --- Tensors ---

// Makes the tensor's tiles; true if the last commit has its bytes.
absl::StatusOr<bool> EngineImpl::AddTiles(const TensorSpec& spec) {
  const uint64_t num_tiles = spec.num_tiles();
  const uint64_t pages_per_tile = (spec.tile_bytes(0) + page_bytes_ - 1) / page_bytes_;
  io::TensorIndex tensor = 0;
  std::vector<bool> stored(num_tiles, false);
  bool found = false;
  absl::Status status;
  const std::string description = DescribeSpec(spec);
  auto with_store = [&](io::Store* store) {
    absl::StatusOr<std::optional<io::TensorIndex>> existing = std::optional<io::TensorIndex>();
    if (!spec.transient) existing = store->FindTensor(spec.name);
    if (!existing.ok()) {
      status = existing.status();
      return;
    }
    if (existing->has_value()) {
      found = true;
      tensor = **existing;
      if (const std::string& before = store->Tensor(tensor).description; before != description) {
        status = absl::InvalidArgumentError(absl::StrCat(
            "tensor '", spec.name, "' is ", before, " in the store, but is registered as ",
            description, ": the store belongs to another model or configuration"));
        return;
      }
      for (uint64_t tile = 0; tile < num_tiles; ++tile) {
        const auto page = store->FindPage(tensor, tile * pages_per_tile);
        status.Update(page.status());
        stored[tile] = page.ok() && page->has_value();
      }
      return;
    }
    auto added =
        store->AddTensor({spec.name, description, num_tiles * pages_per_tile}, spec.transient);
    if (added.ok()) tensor = *added;
    status = added.status();
  };
  if (has_store_) mover_->RunWithStore(with_store);
  SPILLWAY_RETURN_IF_ERROR(status);

  const TensorId id{static_cast<uint32_t>(tensors_.size())};
  Tensor& entry = tensors_.emplace_back();
  entry.spec = spec;
  entry.stored_as = tensor;
  for (uint64_t tile = 0; tile < num_tiles; ++tile) {
    const TileIndex index =
        mover_->AddTile(spec.tile_bytes(tile), spec.role, spec.transient, stored[tile],
                        {.tensor = tensor, .first_page = tile * pages_per_tile});
    if (tile > 0) continue;
    entry.first_tile = index;
    base::MutexLock lock(&names_mu_);
    names_.emplace_back(index, spec.name);
  }
  by_name_.emplace(spec.name, id);
  return found;
}

absl::StatusOr<TensorId> EngineImpl::Register(const TensorSpec& spec, const Reader& reader) {
  SPILLWAY_RETURN_IF_ERROR(CheckSpec(spec));
  if (auto known = by_name_.find(spec.name); known != by_name_.end()) {
    if (Spec(known->second) == spec) return known->second;
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor '", spec.name, "' is registered already as ", DescribeSpec(Spec(known->second)),
        ", now as ", DescribeSpec(spec), ": give it another name"));
  }
  SPILLWAY_ASSIGN_OR_RETURN(const engine::RestingRoom rests, rests_.With(spec));
  SPILLWAY_ASSIGN_OR_RETURN(const bool found, AddTiles(spec));
  rests_ = rests;
  const TensorId id = by_name_.find(spec.name)->second;
  if (!found && reader) SPILLWAY_RETURN_IF_ERROR(Fill(id, reader));
  return id;
}

absl::Status EngineImpl::Unregister(TensorId id) {
  SPILLWAY_RETURN_IF_ERROR(Index({id, 0}).status());
  Tensor& tensor = tensors_[id.value];
  SPILLWAY_RETURN_IF_ERROR(mover_->Forget("Unregister", tensor.first_tile, tensor.spec.num_tiles(),
                                          [&](io::Store* store) {
                                            if (store != nullptr)
                                              store->RemoveTensor(tensor.stored_as);
                                          }));
  tensor.is_gone = true;
  by_name_.erase(by_name_.find(tensor.spec.name));
  return absl::OkStatus();
}

absl::Status EngineImpl::Fill(TensorId id, const Reader& reader) {
  const TensorSpec& spec = Spec(id);
  for (uint64_t tile = 0; tile < spec.num_tiles(); ++tile) {
    SPILLWAY_ASSIGN_OR_RETURN(Lease lease, AcquireHost({id, tile}, Access::kDiscard));
    SPILLWAY_RETURN_IF_ERROR(reader(spec.tile_offset_bytes(tile), lease.as<std::byte>()));
  }
  return absl::OkStatus();
}

absl::StatusOr<TensorId> EngineImpl::Find(std::string_view name) const {
  auto known = by_name_.find(name);
  if (known != by_name_.end()) return known->second;
  return absl::NotFoundError(absl::StrCat("no tensor '", std::string(name), "' is registered"));
}

absl::StatusOr<TileIndex> EngineImpl::Index(TileRef tile) const {
  if (tile.tensor.value >= tensors_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor id ", tile.tensor.value, " is not of this engine"));
  }
  const Tensor& tensor = tensors_[tile.tensor.value];
  if (tensor.is_gone) {
    return absl::NotFoundError(
        absl::StrCat("tensor '", tensor.spec.name, "' was unregistered: its id is void"));
  }
  if (const uint64_t num_tiles = tensor.spec.num_tiles(); tile.tile >= num_tiles) {
    return absl::InvalidArgumentError(absl::StrCat("tensor '", tensor.spec.name, "' has ",
                                                   num_tiles, " tiles: tile ", tile.tile,
                                                   " is past them"));
  }
  return tensor.first_tile + tile.tile;
}

// --- Leases ---

absl::StatusOr<Lease> EngineImpl::Acquire(TileRef tile, Access access, Stream* stream) {
  return Take(tile, Tier::kDevice, access, stream);
}

absl::StatusOr<Lease> EngineImpl::AcquireHost(TileRef tile, Access access) {
  return Take(tile, Tier::kPinned, access, nullptr);
}

absl::StatusOr<Lease> EngineImpl::Take(TileRef tile, Tier tier, Access access, Stream* stream) {
  SPILLWAY_ASSIGN_OR_RETURN(const TileIndex index, Index(tile));
  const engine::StreamId on =
      stream != nullptr ? static_cast<StreamImpl*>(stream)->handle().value : engine::kNoStream;
  SPILLWAY_ASSIGN_OR_RETURN(engine::Granted granted, mover_->Acquire(index, tier, access, on));
  Lease lease;
  lease.engine_ = this;
  lease.data_ = granted.data;
  lease.size_bytes_ = Spec(tile.tensor).tile_bytes(tile.tile);
  lease.tile_ = tile;
  lease.tier_ = tier;
  lease.access_ = access;
  lease.stream_ = stream;
  if (granted.arrival.value != nullptr) {
    tiers::DeviceRuntime& runtime = mover_->runtime();
    const absl::Status status =
        runtime.Wait(static_cast<StreamImpl*>(stream)->handle(), granted.arrival);
    runtime.DestroyEvent(granted.arrival);
    SPILLWAY_RETURN_IF_ERROR(status);
  }
  return lease;
}

void EngineImpl::EndLease(const Lease& lease) {
  const TileIndex index = tensors_[lease.tile_.tensor.value].first_tile + lease.tile_.tile;
  const auto* stream = static_cast<const StreamImpl*>(lease.stream_);
  mover_->EndLease(index, lease.tier_, lease.access_,
                   stream != nullptr ? &stream->handle() : nullptr);
}

absl::Status EngineImpl::Prefetch(std::span<const Use> uses) {
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
  mover_->Declare(tiles, uses);
  return absl::OkStatus();
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
  SPILLWAY_ASSIGN_OR_RETURN(const tiers::StreamHandle handle, mover_->runtime().CreateStream());
  return std::make_unique<StreamImpl>(&mover_->runtime(), handle);
}

// --- Durability ---

absl::Status EngineImpl::CheckHasStore(std::string_view what) const {
  if (has_store_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(std::string(what), " without a store: give EngineOptions::store a folder"));
}

// 1. Every tile that the commit holds goes to NVMe, out of place.
// 2. The store syncs the data, then switches its catalog in one transaction (io/store/store.h).
absl::Status EngineImpl::Commit(std::string_view user_state) {
  SPILLWAY_RETURN_IF_ERROR(CheckHasStore("Commit"));
  mover_->BeginCommit();
  absl::Status status = mover_->Flush();
  if (status.ok()) {
    mover_->RunWithStore([&](io::Store* store) { status = store->Commit(user_state); });
  }
  mover_->EndCommit();
  if (status.ok()) user_state_ = std::string(user_state);
  if (status.ok()) ++commits_;
  return status;
}

absl::Status EngineImpl::Snapshot(std::string_view label) {
  SPILLWAY_RETURN_IF_ERROR(CheckHasStore("Snapshot"));
  SPILLWAY_RETURN_IF_ERROR(mover_->CheckNoLeases("Snapshot"));
  absl::Status status;
  mover_->RunWithStore([&](io::Store* store) { status = store->Snapshot(label); });
  return status;
}

absl::StatusOr<std::vector<SnapshotInfo>> EngineImpl::Snapshots() {
  SPILLWAY_RETURN_IF_ERROR(CheckHasStore("Snapshots"));
  absl::StatusOr<std::vector<io::SnapshotRecord>> records;
  mover_->RunWithStore([&](io::Store* store) { records = store->Snapshots(); });
  if (!records.ok()) return records.status();
  std::vector<SnapshotInfo> snapshots;
  for (io::SnapshotRecord& record : *records) {
    snapshots.push_back({std::move(record.label), record.number, std::move(record.time)});
  }
  return snapshots;
}

absl::Status EngineImpl::Restore(std::string_view label) {
  SPILLWAY_RETURN_IF_ERROR(CheckHasStore("Restore"));
  std::optional<std::string> user_state;
  const auto go_back = [&](io::Store* store) {
    absl::Status status = store->Restore(label);
    if (status.ok()) user_state = store->UserState();
    return status;
  };
  SPILLWAY_RETURN_IF_ERROR(mover_->Restore("Restore", go_back));
  user_state_ = std::move(user_state);
  return absl::OkStatus();
}

absl::Status EngineImpl::Drop(std::string_view label) {
  SPILLWAY_RETURN_IF_ERROR(CheckHasStore("Drop"));
  absl::Status status;
  mover_->RunWithStore([&](io::Store* store) { status = store->Drop(label); });
  return status;
}

EngineStats EngineImpl::Stats() const {
  EngineStats stats = mover_->Stats();
  stats.commits = commits_;
  stats.placement = options_.placement;
  stats.io_engine = io_name_;
  stats.device = mover_->runtime().name();
  base::MutexLock lock(&announce_mu_);
  stats.fallbacks = fallbacks_;
  return stats;
}

Timeline EngineImpl::TakeTimeline() {
  Timeline timeline = mover_->TakeTimeline();
  if (options_.timeline_events == 0) return timeline;
  for (const Tensor& tensor : tensors_) {
    timeline.tensors.push_back({.name = tensor.spec.name,
                                .first_tile = tensor.first_tile,
                                .num_tiles = static_cast<uint32_t>(tensor.spec.num_tiles())});
  }
  timeline.budget_bytes = {options_.device_bytes, options_.pinned_bytes, options_.store_bytes};
  return timeline;
}

}  // namespace spillway
