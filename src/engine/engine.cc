// SPDX-License-Identifier: Apache-2.0
//
// The facade: checks what callers give, knows tensors by name, and hands tiles to the mover. What
// the mover works with is made in engine_parts.cc.

#include "spillway/engine.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <map>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "io/make_io_engine.h"
#include "io/store/store.h"
#include "src/base/bytes.h"
#include "src/base/forks.h"
#include "src/base/mutex.h"
#include "src/base/stable_array.h"
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
  if (spec.num_tiles() >= std::numeric_limits<uint32_t>::max())
    return bad(absl::StrCat("it has ", spec.num_tiles(),
                            " tiles, and at most 2^32 - 2 are allowed: "
                            "raise tile_rows"));
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
  ~StreamImpl() override {
    if (!process_.is_forked()) runtime_->DestroyStream(handle_);
  }
  const tiers::DeviceRuntime* runtime() const { return runtime_; }
  absl::Status Launch(std::function<void()> work) override {
    SPILLWAY_RETURN_IF_ERROR(CheckProcess());
    return runtime_->Launch(handle_, std::move(work));
  }
  absl::Status Synchronize() override {
    SPILLWAY_RETURN_IF_ERROR(CheckProcess());
    return runtime_->Synchronize(handle_);
  }
  void* native_handle() override { return runtime_->native_handle(handle_); }
  const tiers::StreamHandle& handle() const { return handle_; }

 private:
  absl::Status CheckProcess() const {
    if (!process_.is_forked()) return absl::OkStatus();
    return absl::FailedPreconditionError(
        "this process was forked from the one that made the stream: only that one can use it");
  }

  tiers::DeviceRuntime* runtime_;
  tiers::StreamHandle handle_;
  base::ForkGuard process_;
};

class EngineImpl final : public Engine {
 public:
  static absl::StatusOr<std::unique_ptr<Engine>> Open(EngineOptions options,
                                                      const engine::OpenChoices& choices);
  ~EngineImpl() override;

  absl::StatusOr<TensorId> Register(const TensorSpec& spec, const Reader& reader) override;
  absl::Status Unregister(TensorId id) override;
  absl::Status ForgetName(std::string_view name) override;
  absl::StatusOr<TensorId> Find(std::string_view name) const override;
  const TensorSpec& Spec(TensorId id) const override { return tensors_[id.value].spec; }
  absl::Status CheckTile(TileRef tile) const override { return Index(tile).status(); }
  absl::Status CheckProcess() const override;
  absl::StatusOr<Lease> Acquire(TileRef tile, Access access, Stream* stream) override;
  absl::StatusOr<Lease> AcquireHost(TileRef tile, Access access) override;
  absl::Status Prefetch(std::span<const Use> uses) override;
  void ClearPrefetch() override;
  absl::Status Evict(TileRef tile) override;
  absl::Status Discard(TileRef tile) override;
  absl::Status EndStep() override;
  absl::Status WaitForPlan() override;
  absl::Status Commit(std::string_view user_state) override;
  std::optional<std::string> UserState() const override {
    if (process_.is_forked()) return std::nullopt;
    base::MutexLock lock(&committed_mu_);
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
  uint64_t page_bytes() const override { return page_bytes_; }

 protected:
  void EndLease(const Lease& lease) override;

 private:
  struct Tensor {
    const TensorSpec spec;
    const TileIndex first_tile = 0;
    const io::TensorIndex stored_as = 0;  // in the store, if there is one
    enum class State : uint8_t { kFilling, kThere, kGone };
    std::atomic<State> state = State::kFilling;
  };
  struct Added {
    TensorId id;
    bool is_stored = false;  // the last commit has its bytes
  };

  absl::StatusOr<TileIndex> Index(TileRef tile) const;
  absl::StatusOr<Lease> Take(TileRef tile, Tier tier, Access access, Stream* stream);
  absl::StatusOr<Lease> TakeAt(TileIndex index, TileRef tile, Tier tier, Access access,
                               Stream* stream);
  absl::StatusOr<std::optional<TensorId>> FindOrReserve(const TensorSpec& spec);
  void Publish(const std::string& name, std::optional<TensorId> id);
  absl::StatusOr<TensorId> Make(const TensorSpec& spec, const Reader& reader);
  absl::StatusOr<Added> AddTiles(const TensorSpec& spec)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(register_mu_);
  absl::Status Fill(TensorId id, const Reader& reader);
  absl::Status Forget(TensorId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(register_mu_);
  std::string DescribeTile(TileIndex tile) const;
  absl::Status CheckHasStore(std::string_view what) const;
  // Of this engine's; null: none. InvalidArgument: it is another engine's.
  absl::StatusOr<const tiers::StreamHandle*> HandleOf(const Stream* stream) const;
  void Announce(std::string_view what);

  // Constant after Open.
  EngineOptions options_;
  uint64_t page_bytes_ = 0;
  bool has_store_ = false;
  std::string io_name_;
  std::string store_id_;
  const base::ForkGuard process_;
  const pid_t pid_ = getpid();

  // Held while tensors come and go, and while all of them get another commit's bytes.
  base::Mutex register_mu_;
  engine::RestingRoom rests_ ABSL_GUARDED_BY(register_mu_);
  base::StableArray<Tensor> tensors_;  // by TensorId

  mutable base::Mutex names_mu_;
  // None: it is being registered.
  std::map<std::string, std::optional<TensorId>, std::less<>> by_name_ ABSL_GUARDED_BY(names_mu_);
  base::CondVar published_;
  std::vector<std::pair<TileIndex, std::string>> names_
      ABSL_GUARDED_BY(names_mu_);  // first tile, name; for messages

  mutable base::Mutex committed_mu_;
  std::optional<std::string> user_state_ ABSL_GUARDED_BY(committed_mu_);
  uint64_t commits_ ABSL_GUARDED_BY(committed_mu_) = 0;

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
    base::MutexLock lock(&engine->committed_mu_);
    engine->user_state_ = parts.store->UserState();
    engine->io_name_ = std::string(parts.io->name());
    engine->store_id_ = parts.store->id();
    engine->has_store_ = true;
  }
  engine::PagerOptions paging;
  paging.device_bytes = parts.device_bytes;
  paging.pinned_bytes = parts.pinned->size_bytes();
  paging.has_store = engine->has_store_;
  paging.placement = options.placement;
  {
    base::MutexLock lock(&engine->register_mu_);
    engine->rests_ =
        engine::RestingRoom(options.placement, paging.device_bytes, paging.pinned_bytes);
  }
  paging.describe = [self](TileIndex tile) { return self->DescribeTile(tile); };
  const std::optional<plan::Policy> policy =
      options.plan_steps ? std::optional(choices.policy) : std::nullopt;
  SPILLWAY_ASSIGN_OR_RETURN(engine->mover_,
                            Mover::Create(std::move(parts), std::move(paging), policy));
  return std::unique_ptr<Engine>(std::move(engine));
}

// In a fork none of the mover's threads is there to end.
EngineImpl::~EngineImpl() {
  if (!process_.is_forked()) return;
  [[maybe_unused]] const Mover* const left = mover_.release();
}

absl::Status EngineImpl::CheckProcess() const {
  if (!process_.is_forked()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "process ", getpid(), " was forked from process ", pid_,
      ", which opened this engine: only that one can use it. Start processes that need an engine "
      "without fork (Python: multiprocessing's 'spawn'), or open one there"));
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

absl::StatusOr<EngineImpl::Added> EngineImpl::AddTiles(const TensorSpec& spec) {
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

  TileIndex first_tile = 0;
  for (uint64_t tile = 0; tile < num_tiles; ++tile) {
    const TileIndex index =
        mover_->AddTile(spec.tile_bytes(tile), spec.role, spec.transient, stored[tile],
                        {.tensor = tensor, .first_page = tile * pages_per_tile});
    if (tile > 0) continue;
    first_tile = index;
    base::MutexLock lock(&names_mu_);
    names_.emplace_back(index, spec.name);
  }
  const TensorId id{static_cast<uint32_t>(tensors_.size())};
  tensors_.emplace_back(spec, first_tile, tensor);
  return Added{.id = id, .is_stored = found};
}

// The tensor, if it is there; none: the name is the caller's until it publishes what became of it.
absl::StatusOr<std::optional<TensorId>> EngineImpl::FindOrReserve(const TensorSpec& spec) {
  base::MutexLock lock(&names_mu_);
  auto known = by_name_.find(spec.name);
  while (known != by_name_.end() && !known->second) {
    published_.Wait(&names_mu_);
    known = by_name_.find(spec.name);
  }
  if (known == by_name_.end()) {
    by_name_.emplace(spec.name, std::nullopt);
    return std::nullopt;
  }
  const TensorId id = *known->second;
  if (Spec(id) == spec) return id;
  return absl::InvalidArgumentError(
      absl::StrCat("tensor '", spec.name, "' is registered already as ", DescribeSpec(Spec(id)),
                   ", now as ", DescribeSpec(spec), ": give it another name"));
}

void EngineImpl::Publish(const std::string& name, std::optional<TensorId> id) {
  base::MutexLock lock(&names_mu_);
  if (id) {
    by_name_[name] = id;
  } else {
    by_name_.erase(name);
  }
  published_.NotifyAll();
}

absl::StatusOr<TensorId> EngineImpl::Register(const TensorSpec& spec, const Reader& reader) {
  SPILLWAY_RETURN_IF_ERROR(CheckProcess());
  SPILLWAY_RETURN_IF_ERROR(CheckSpec(spec));
  SPILLWAY_ASSIGN_OR_RETURN(const std::optional<TensorId> known, FindOrReserve(spec));
  if (known) return *known;
  absl::StatusOr<TensorId> made = absl::CancelledError("the reader threw");
  const absl::Cleanup publish = [&] {
    Publish(spec.name, made.ok() ? std::optional(*made) : std::nullopt);
  };
  mover_->BeginFill();
  const absl::Cleanup end_fill = [&] { mover_->EndFill(); };
  made = Make(spec, reader);
  return made;
}

absl::StatusOr<TensorId> EngineImpl::Make(const TensorSpec& spec, const Reader& reader) {
  Added added;
  {
    base::MutexLock lock(&register_mu_);
    SPILLWAY_ASSIGN_OR_RETURN(const engine::RestingRoom rests, rests_.With(spec));
    SPILLWAY_ASSIGN_OR_RETURN(added, AddTiles(spec));
    rests_ = rests;
  }
  Tensor& tensor = tensors_[added.id.value];
  absl::Status filled = absl::CancelledError("the reader threw");
  const absl::Cleanup forget = [&] {
    if (filled.ok()) return;
    base::MutexLock lock(&register_mu_);
    Forget(added.id).IgnoreError();  // it can fail only for a lease, and nobody else has one
  };
  filled = added.is_stored || !reader ? absl::OkStatus() : Fill(added.id, reader);
  SPILLWAY_RETURN_IF_ERROR(filled);
  tensor.state = Tensor::State::kThere;
  return added.id;
}

absl::Status EngineImpl::ForgetName(std::string_view name) {
  SPILLWAY_RETURN_IF_ERROR(CheckProcess());
  if (const auto id = Find(name); id.ok()) return Unregister(*id);
  absl::Status status = absl::NotFoundError(
      absl::StrCat("no tensor '", std::string(name), "' is registered or in the last commit"));
  if (!has_store_) return status;
  base::MutexLock lock(&register_mu_);
  mover_->RunWithStore([&](io::Store* store) {
    const auto found = store->FindTensor(name);
    if (!found.ok()) status = found.status();
    if (!found.ok() || !found->has_value()) return;
    store->RemoveTensor(**found);
    status = absl::OkStatus();
  });
  return status;
}

absl::Status EngineImpl::Unregister(TensorId id) {
  SPILLWAY_RETURN_IF_ERROR(CheckProcess());
  base::MutexLock lock(&register_mu_);
  SPILLWAY_RETURN_IF_ERROR(Index({id, 0}).status());
  SPILLWAY_RETURN_IF_ERROR(Forget(id));
  Publish(Spec(id).name, std::nullopt);
  return absl::OkStatus();
}

absl::Status EngineImpl::Forget(TensorId id) {
  Tensor& tensor = tensors_[id.value];
  const auto num_tiles = static_cast<TileIndex>(tensor.spec.num_tiles());
  const auto remove = [&tensor](io::Store* store) {
    if (store != nullptr) store->RemoveTensor(tensor.stored_as);
  };
  SPILLWAY_RETURN_IF_ERROR(mover_->Forget(tensor.first_tile, num_tiles, remove));
  tensor.state = Tensor::State::kGone;
  return absl::OkStatus();
}

absl::Status EngineImpl::Fill(TensorId id, const Reader& reader) {
  const TensorSpec& spec = Spec(id);
  for (uint64_t tile = 0; tile < spec.num_tiles(); ++tile) {
    const auto index = tensors_[id.value].first_tile + static_cast<TileIndex>(tile);
    SPILLWAY_ASSIGN_OR_RETURN(Lease lease,
                              TakeAt(index, {id, tile}, Tier::kPinned, Access::kDiscard, nullptr));
    SPILLWAY_RETURN_IF_ERROR(reader(spec.tile_offset_bytes(tile), lease.as<std::byte>()));
  }
  return absl::OkStatus();
}

absl::StatusOr<TensorId> EngineImpl::Find(std::string_view name) const {
  SPILLWAY_RETURN_IF_ERROR(CheckProcess());
  {
    base::MutexLock lock(&names_mu_);
    const auto known = by_name_.find(name);
    if (known != by_name_.end() && known->second) return *known->second;
  }
  return absl::NotFoundError(absl::StrCat("no tensor '", std::string(name), "' is registered"));
}

absl::StatusOr<TileIndex> EngineImpl::Index(TileRef tile) const {
  SPILLWAY_RETURN_IF_ERROR(CheckProcess());
  if (tile.tensor.value >= tensors_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor id ", tile.tensor.value, " is not of this engine"));
  }
  const Tensor& tensor = tensors_[tile.tensor.value];
  if (const Tensor::State state = tensor.state; state != Tensor::State::kThere) {
    return absl::NotFoundError(absl::StrCat("tensor '", tensor.spec.name, "' ",
                                            state == Tensor::State::kGone
                                                ? "was unregistered: its id is void"
                                                : "is being registered"));
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
  return TakeAt(index, tile, tier, access, stream);
}

absl::StatusOr<Lease> EngineImpl::TakeAt(TileIndex index, TileRef tile, Tier tier, Access access,
                                         Stream* stream) {
  SPILLWAY_ASSIGN_OR_RETURN(const tiers::StreamHandle* const handle, HandleOf(stream));
  const engine::StreamId on = handle != nullptr ? handle->value : engine::kNoStream;
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
    const absl::Status status = runtime.Wait(*handle, granted.arrival);
    runtime.DestroyEvent(granted.arrival);
    SPILLWAY_RETURN_IF_ERROR(status);
  }
  return lease;
}

void EngineImpl::EndLease(const Lease& lease) {
  if (process_.is_forked()) return;
  const TileIndex index = tensors_[lease.tile_.tensor.value].first_tile + lease.tile_.tile;
  const auto handle = HandleOf(lease.stream_);
  // There is nothing to follow another engine's stream with, nor anyone to tell.
  if (!handle.ok()) (void)lease.stream_->Synchronize();
  mover_->EndLease(index, lease.tier_, lease.access_, handle.ok() ? *handle : nullptr);
}

absl::StatusOr<const tiers::StreamHandle*> EngineImpl::HandleOf(const Stream* stream) const {
  if (stream == nullptr) return nullptr;
  const auto* const known = dynamic_cast<const StreamImpl*>(stream);
  if (known != nullptr && known->runtime() == &mover_->runtime()) return &known->handle();
  return absl::InvalidArgumentError(
      "the stream is not this engine's: make it with its CreateStream or WrapStream");
}

void EngineImpl::ClearPrefetch() {
  if (!process_.is_forked()) mover_->ClearDeclared();
}

absl::Status EngineImpl::EndStep() {
  SPILLWAY_RETURN_IF_ERROR(CheckProcess());
  return mover_->EndStep();
}

absl::Status EngineImpl::WaitForPlan() {
  SPILLWAY_RETURN_IF_ERROR(CheckProcess());
  mover_->WaitForPlan();
  return absl::OkStatus();
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
  SPILLWAY_RETURN_IF_ERROR(CheckProcess());
  SPILLWAY_ASSIGN_OR_RETURN(const tiers::StreamHandle handle, mover_->runtime().CreateStream());
  return std::make_unique<StreamImpl>(&mover_->runtime(), handle);
}

absl::StatusOr<std::unique_ptr<Stream>> EngineImpl::WrapStream(void* native) {
  SPILLWAY_RETURN_IF_ERROR(CheckProcess());
  SPILLWAY_ASSIGN_OR_RETURN(const tiers::StreamHandle handle, mover_->runtime().WrapStream(native));
  return std::make_unique<StreamImpl>(&mover_->runtime(), handle);
}

// --- Durability ---

absl::Status EngineImpl::CheckHasStore(std::string_view what) const {
  SPILLWAY_RETURN_IF_ERROR(CheckProcess());
  if (has_store_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(std::string(what), " without a store: give EngineOptions::store a folder"));
}

// 1. Every tile that the commit holds goes to NVMe, out of place.
// 2. The store syncs the data, then switches its catalog in one transaction (io/store/store.h).
absl::Status EngineImpl::Commit(std::string_view user_state) {
  SPILLWAY_RETURN_IF_ERROR(CheckHasStore("Commit"));
  const Mover::Turn turn(mover_.get());
  mover_->BeginCommit();
  absl::Status status = mover_->Flush();
  if (status.ok()) {
    mover_->RunWithStore([&](io::Store* store) { status = store->Commit(user_state); });
  }
  mover_->EndCommit();
  if (!status.ok()) return status;
  base::MutexLock lock(&committed_mu_);
  user_state_ = std::string(user_state);
  ++commits_;
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
  const auto go_back = [&](io::Store* store) {
    const absl::Status status = store->Restore(label);
    base::MutexLock lock(&committed_mu_);
    if (status.ok()) user_state_ = store->UserState();
    return status;
  };
  base::MutexLock registering(&register_mu_);
  return mover_->Restore(go_back);
}

absl::Status EngineImpl::Drop(std::string_view label) {
  SPILLWAY_RETURN_IF_ERROR(CheckHasStore("Drop"));
  absl::Status status;
  mover_->RunWithStore([&](io::Store* store) { status = store->Drop(label); });
  return status;
}

uint64_t EngineImpl::CommitNumber() const {
  uint64_t number = 0;
  if (has_store_ && !process_.is_forked())
    mover_->RunWithStore([&](io::Store* store) { number = store->commit_number(); });
  return number;
}

EngineStats EngineImpl::Stats() const {
  if (process_.is_forked()) return {};
  EngineStats stats = mover_->Stats();
  {
    base::MutexLock lock(&committed_mu_);
    stats.commits = commits_;
  }
  stats.placement = options_.placement;
  stats.io_engine = io_name_;
  stats.device = mover_->runtime().name();
  base::MutexLock lock(&announce_mu_);
  stats.fallbacks = fallbacks_;
  return stats;
}

Timeline EngineImpl::TakeTimeline() {
  if (process_.is_forked()) return {};
  Timeline timeline = mover_->TakeTimeline();
  if (options_.timeline_events == 0) return timeline;
  const size_t num_tensors = tensors_.size();
  for (size_t i = 0; i < num_tensors; ++i) {
    const Tensor& tensor = tensors_[i];
    timeline.tensors.push_back({.name = tensor.spec.name,
                                .first_tile = tensor.first_tile,
                                .num_tiles = static_cast<uint32_t>(tensor.spec.num_tiles())});
  }
  timeline.budget_bytes = {options_.device_bytes, options_.pinned_bytes, options_.store_bytes};
  return timeline;
}

}  // namespace spillway
