// SPDX-License-Identifier: Apache-2.0
//
// An engine for dry runs. It has tensors without bytes, grants every lease at once, and records
// leases, their ends and discards in order. Its leases have a size of 0 bytes, and its streams run
// nothing.

#ifndef SPILLWAY_TOOLS_TRAINER_RECORDING_ENGINE_H_
#define SPILLWAY_TOOLS_TRAINER_RECORDING_ENGINE_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spillway/engine.h"

namespace spillway::trainer {

struct LeaseEvent {
  enum class Kind : uint8_t { kAcquire, kRelease, kDiscard };
  TileRef tile;
  Kind kind = Kind::kAcquire;
  Tier tier = Tier::kDevice;      // kDevice for a discard
  Access access = Access::kRead;  // kRead for a discard

  friend bool operator==(const LeaseEvent&, const LeaseEvent&) = default;
};

// Thread-compatible. Calls that need a store fail with FailedPrecondition.
class RecordingEngine : public Engine {
 public:
  // With `of`, the tensors are those of another engine, which must outlive this one; its bytes are
  // never leased, and nothing is registered here.
  explicit RecordingEngine(const Engine* of) : of_(of) {}
  // With tensors of its own, whose roles rest there.
  explicit RecordingEngine(const Placement& placement = {}) { options_.placement = placement; }

  const std::vector<LeaseEvent>& events() const { return events_; }
  std::vector<LeaseEvent> TakeEvents() { return std::exchange(events_, {}); }
  // The leases recorded, in order.
  std::vector<Use> Uses() const;
  // The registered tensors, by id.
  const std::vector<TensorSpec>& specs() const { return specs_; }
  void Clear() { events_.clear(); }

  // Does not read: there are no bytes.
  absl::StatusOr<TensorId> Register(const TensorSpec& spec, const Reader& reader = {}) override;
  absl::Status Unregister(TensorId id) override;
  absl::Status ForgetName(std::string_view name) override;
  absl::StatusOr<TensorId> Find(std::string_view name) const override;
  const TensorSpec& Spec(TensorId id) const override {
    return of_ != nullptr ? of_->Spec(id) : specs_[id.value];
  }
  absl::Status CheckTile(TileRef tile) const override;
  absl::StatusOr<Lease> Acquire(TileRef tile, Access access,
                                Stream* /*stream*/ = nullptr) override {
    return Grant(tile, Tier::kDevice, access);
  }
  absl::StatusOr<Lease> AcquireHost(TileRef tile, Access access) override {
    return Grant(tile, Tier::kPinned, access);
  }
  absl::Status Prefetch(std::span<const Use> /*uses*/) override { return absl::OkStatus(); }
  void ClearPrefetch() override {}
  absl::Status Evict(TileRef /*tile*/) override { return absl::OkStatus(); }
  absl::Status Discard(TileRef tile) override {
    events_.push_back({.tile = tile, .kind = LeaseEvent::Kind::kDiscard});
    return absl::OkStatus();
  }
  absl::Status EndStep() override { return absl::OkStatus(); }
  absl::Status WaitForPlan() override { return absl::OkStatus(); }
  absl::Status Commit(std::string_view user_state) override;
  std::optional<std::string> UserState() const override { return std::nullopt; }
  uint64_t CommitNumber() const override { return 0; }
  std::string StoreId() const override { return {}; }
  absl::Status Snapshot(std::string_view label) override;
  absl::StatusOr<std::vector<SnapshotInfo>> Snapshots() override;
  absl::Status Restore(std::string_view label) override;
  absl::Status Drop(std::string_view label) override;
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream() override;
  absl::StatusOr<std::unique_ptr<Stream>> WrapStream(void* native) override;
  absl::Status CheckProcess() const override { return absl::OkStatus(); }
  EngineStats Stats() const override { return {}; }
  Timeline TakeTimeline() override { return {}; }
  uint64_t page_bytes() const override { return kMiB; }
  const EngineOptions& options() const override {
    return of_ != nullptr ? of_->options() : options_;
  }

 protected:
  void EndLease(const Lease& lease) override;

 private:
  Lease Grant(TileRef tile, Tier tier, Access access) {
    events_.push_back({tile, LeaseEvent::Kind::kAcquire, tier, access});
    if (free_.empty()) free_.push_back(&held_.emplace_back());
    Use* const use = free_.back();
    free_.pop_back();
    *use = {tile, tier, access};
    // Nothing lies where the lease's data begins but its own use, by which its end is known.
    return MakeLease({reinterpret_cast<std::byte*>(use), 0}, tile, tier, access);
  }

  const Engine* const of_ = nullptr;
  EngineOptions options_;
  std::vector<TensorSpec> specs_;
  std::vector<LeaseEvent> events_;
  std::deque<Use> held_;    // what each lease that is held was made for, and free places
  std::vector<Use*> free_;  // of held_
};

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_RECORDING_ENGINE_H_
