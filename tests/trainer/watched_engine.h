// SPDX-License-Identifier: Apache-2.0
//
// An engine around another one, which it records: leases, their ends and discards, in the order in
// which callers see them.

#ifndef SPILLWAY_TESTS_TRAINER_WATCHED_ENGINE_H_
#define SPILLWAY_TESTS_TRAINER_WATCHED_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "spillway/engine.h"
#include "tools/trainer/recording_engine.h"

namespace spillway::trainer {

// Thread-compatible. The watched engine must outlive it.
class WatchedEngine : public Engine {
 public:
  explicit WatchedEngine(Engine* engine) : engine_(engine) {}

  // What was recorded since the last call.
  std::vector<LeaseEvent> TakeEvents() { return std::exchange(events_, {}); }

  absl::StatusOr<TensorId> Register(const TensorSpec& spec, const Reader& reader = {}) override {
    return engine_->Register(spec, reader);
  }
  absl::Status Unregister(TensorId id) override { return engine_->Unregister(id); }
  absl::Status ForgetName(std::string_view name) override { return engine_->ForgetName(name); }
  absl::StatusOr<TensorId> Find(std::string_view name) const override {
    return engine_->Find(name);
  }
  const TensorSpec& Spec(TensorId id) const override { return engine_->Spec(id); }
  absl::Status CheckTile(TileRef tile) const override { return engine_->CheckTile(tile); }
  absl::StatusOr<Lease> Acquire(TileRef tile, Access access, Stream* stream = nullptr) override {
    return Watch(engine_->Acquire(tile, access, stream), {tile, Tier::kDevice, access});
  }
  absl::StatusOr<Lease> AcquireHost(TileRef tile, Access access) override {
    return Watch(engine_->AcquireHost(tile, access), {tile, Tier::kPinned, access});
  }
  absl::Status Prefetch(std::span<const Use> uses) override {
    declared.assign(uses.begin(), uses.end());
    return engine_->Prefetch(uses);
  }
  void ClearPrefetch() override { engine_->ClearPrefetch(); }
  absl::Status Evict(TileRef tile) override { return engine_->Evict(tile); }
  absl::Status Discard(TileRef tile) override {
    events_.push_back({.tile = tile, .kind = LeaseEvent::Kind::kDiscard});
    return engine_->Discard(tile);
  }
  absl::Status EndStep() override { return engine_->EndStep(); }
  absl::Status WaitForPlan() override { return engine_->WaitForPlan(); }
  absl::Status Commit(std::string_view state) override { return engine_->Commit(state); }
  std::optional<std::string> UserState() const override { return engine_->UserState(); }
  uint64_t CommitNumber() const override { return engine_->CommitNumber(); }
  std::string StoreId() const override { return engine_->StoreId(); }
  absl::Status Snapshot(std::string_view label) override { return engine_->Snapshot(label); }
  absl::StatusOr<std::vector<SnapshotInfo>> Snapshots() override { return engine_->Snapshots(); }
  absl::Status Restore(std::string_view label) override { return engine_->Restore(label); }
  absl::Status Drop(std::string_view label) override { return engine_->Drop(label); }
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream() override {
    return engine_->CreateStream();
  }
  absl::StatusOr<std::unique_ptr<Stream>> WrapStream(void* native) override {
    return engine_->WrapStream(native);
  }
  absl::Status CheckProcess() const override { return engine_->CheckProcess(); }
  EngineStats Stats() const override { return engine_->Stats(); }
  Timeline TakeTimeline() override { return engine_->TakeTimeline(); }
  uint64_t page_bytes() const override { return engine_->page_bytes(); }
  const EngineOptions& options() const override { return engine_->options(); }

  std::vector<Use> declared;  // by the last Prefetch

 protected:
  void EndLease(const Lease& lease) override {
    const auto held = held_.find(lease.data());
    const Use& use = held->second.first;
    events_.push_back({use.tile, LeaseEvent::Kind::kRelease, use.tier, use.access});
    held_.erase(held);
  }

 private:
  absl::StatusOr<Lease> Watch(absl::StatusOr<Lease> lease, const Use& use) {
    if (!lease.ok()) return lease;
    events_.push_back({use.tile, LeaseEvent::Kind::kAcquire, use.tier, use.access});
    const std::span<std::byte> bytes(lease->data(), lease->size_bytes());
    held_.emplace(bytes.data(), std::pair(use, *std::move(lease)));
    return MakeLease(bytes, use.tile, use.tier, use.access);
  }

  Engine* const engine_;
  // The watched engine's leases that are held, by address.
  std::multimap<const std::byte*, std::pair<Use, Lease>> held_;
  std::vector<LeaseEvent> events_;
};

}  // namespace spillway::trainer

#endif  // SPILLWAY_TESTS_TRAINER_WATCHED_ENGINE_H_
