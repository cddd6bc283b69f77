// SPDX-License-Identifier: Apache-2.0
//
// An engine for tests: every tile is on the heap, and nothing moves. It has no threads and no
// budget. It refuses a second lease of a leased tile and fills the bytes of a kDiscard lease with
// NaN, so that a test exposes a caller that breaks the rules of leases. It records leases, discards
// and declared uses, and can refuse a lease or a discard.

#ifndef SPILLWAY_TESTS_HEAP_ENGINE_H_
#define SPILLWAY_TESTS_HEAP_ENGINE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "spillway/engine.h"

namespace spillway {

// Thread-compatible.
class HeapEngine : public Engine {
 public:
  absl::StatusOr<TensorId> Register(const TensorSpec& spec, const Reader& reader = {}) override {
    if (const auto known = Find(spec.name); known.ok() && Spec(*known) == spec) return known;
    Tensor tensor{.spec = spec, .bytes = std::vector<std::byte>(spec.size_bytes())};
    for (uint64_t tile = 0; reader && tile < spec.num_tiles(); ++tile) {
      const uint64_t offset = spec.tile_offset_bytes(tile);
      const auto piece = std::span(tensor.bytes).subspan(offset, spec.tile_bytes(tile));
      if (absl::Status status = reader(offset, piece); !status.ok()) return status;
    }
    tensors_.push_back(std::make_unique<Tensor>(std::move(tensor)));
    const TensorId id{static_cast<uint32_t>(tensors_.size() - 1)};
    // Leases allocate nothing, for tests that count what a caller allocates.
    for (uint64_t tile = 0; tile < spec.num_tiles(); ++tile) leased_[Bytes({id, tile}).data()] = 0;
    return id;
  }
  absl::Status Unregister(TensorId /*id*/) override {
    return absl::UnimplementedError("no tensor goes");
  }
  absl::Status ForgetName(std::string_view /*name*/) override {
    return absl::UnimplementedError("no tensor goes");
  }
  absl::StatusOr<TensorId> Find(std::string_view name) const override {
    for (uint32_t i = 0; i < tensors_.size(); ++i) {
      if (tensors_[i]->spec.name == name) return TensorId{i};
    }
    return absl::NotFoundError(std::string(name));
  }
  const TensorSpec& Spec(TensorId id) const override { return tensors_[id.value]->spec; }
  absl::Status CheckTile(TileRef tile) const override {
    if (tile.tensor.value < tensors_.size()) return absl::OkStatus();
    return absl::InvalidArgumentError("there is no such tensor");
  }

  absl::StatusOr<Lease> Acquire(TileRef tile, Access access,
                                Stream* /*stream*/ = nullptr) override {
    return Grant(tile, Tier::kDevice, access);
  }
  absl::StatusOr<Lease> AcquireHost(TileRef tile, Access access) override {
    return Grant(tile, Tier::kPinned, access);
  }

  absl::Status Prefetch(std::span<const Use> more) override {
    declared_.insert(declared_.end(), more.begin(), more.end());
    return absl::OkStatus();
  }
  void ClearPrefetch() override { declared_.clear(); }
  absl::Status Evict(TileRef /*tile*/) override { return absl::OkStatus(); }
  absl::Status Discard(TileRef tile) override {
    discards.push_back({tile, uses.size()});
    if (!discard_status.ok()) return discard_status;
    const TensorSpec& spec = Spec(tile.tensor);
    if (!spec.transient) return absl::InvalidArgumentError(spec.name + " is not transient");
    const auto bytes = Bytes(tile);
    std::fill(bytes.begin(), bytes.end(), std::byte{0});
    return absl::OkStatus();
  }
  absl::Status EndStep() override { return absl::OkStatus(); }
  absl::Status WaitForPlan() override { return absl::OkStatus(); }
  absl::Status Commit(std::string_view /*user_state*/) override {
    return absl::FailedPreconditionError("no store");
  }
  std::optional<std::string> UserState() const override { return std::nullopt; }
  uint64_t CommitNumber() const override { return 0; }
  std::string StoreId() const override { return {}; }
  absl::Status Snapshot(std::string_view /*label*/) override {
    return absl::FailedPreconditionError("no store");
  }
  absl::StatusOr<std::vector<SnapshotInfo>> Snapshots() override {
    return absl::FailedPreconditionError("no store");
  }
  absl::Status Restore(std::string_view /*label*/) override {
    return absl::FailedPreconditionError("no store");
  }
  absl::Status Drop(std::string_view /*label*/) override {
    return absl::FailedPreconditionError("no store");
  }
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream() override {
    return absl::UnimplementedError("no streams");
  }
  absl::StatusOr<std::unique_ptr<Stream>> WrapStream(void* /*native*/) override {
    return absl::UnimplementedError("no streams");
  }
  absl::Status CheckProcess() const override { return absl::OkStatus(); }
  EngineStats Stats() const override { return {}; }
  Timeline TakeTimeline() override { return {}; }
  uint64_t page_bytes() const override { return kMiB; }
  const EngineOptions& options() const override { return opened_with; }

  struct Discarded {
    TileRef tile;
    size_t num_uses;  // leases granted before the discard
  };
  EngineOptions opened_with;
  std::vector<Use> uses;  // of all leases granted
  std::vector<Discarded> discards;
  absl::Status discard_status;                            // if it is an error, what Discard returns
  size_t refuse_at = std::numeric_limits<size_t>::max();  // the lease that fails, counted from 0

  // Returns the device leases granted since the last ClearLog, in order.
  const std::vector<Use>& log() const { return log_; }
  void ClearLog() { log_.clear(); }
  // Returns the uses that Prefetch declared since the last ClearPrefetch.
  const std::vector<Use>& declared() const { return declared_; }
  // Returns the number of leases that are held, and the largest there ever was, in both tiers.
  int held() const { return held_; }
  int most_held() const { return most_held_; }

  std::vector<TensorSpec> specs() const {
    std::vector<TensorSpec> specs;
    for (const auto& tensor : tensors_) specs.push_back(tensor->spec);
    return specs;
  }

  // Returns a tensor's bytes as values.
  template <typename T>
  std::span<T> Values(TensorId id) {
    std::vector<std::byte>& bytes = tensors_[id.value]->bytes;
    return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
  }

 protected:
  void EndLease(const Lease& lease) override {
    --held_;
    leased_[lease.data()] = 0;
  }

 private:
  struct Tensor {
    TensorSpec spec;
    std::vector<std::byte> bytes;
  };

  std::span<std::byte> Bytes(TileRef tile) {
    Tensor& tensor = *tensors_[tile.tensor.value];
    return std::span(tensor.bytes)
        .subspan(tensor.spec.tile_offset_bytes(tile.tile), tensor.spec.tile_bytes(tile.tile));
  }

  absl::StatusOr<Lease> Grant(TileRef tile, Tier tier, Access access) {
    if (uses.size() == refuse_at) return absl::DataLossError("the page is rotten");
    const auto bytes = Bytes(tile);
    int& leases = leased_[bytes.data()];
    if (leases != 0) {
      return absl::InternalError(absl::StrCat(Spec(tile.tensor).name, " is leased already"));
    }
    leases = 1;
    most_held_ = std::max(most_held_, ++held_);
    // The bytes start undefined. This pattern is NaN in every format, which exposes a read of them.
    if (access == Access::kDiscard) std::fill(bytes.begin(), bytes.end(), std::byte{0xFF});
    uses.push_back({tile, tier, access});
    if (tier == Tier::kDevice) log_.push_back(uses.back());
    return MakeLease(bytes, tile, tier, access);
  }

  std::vector<std::unique_ptr<Tensor>> tensors_;
  std::map<const std::byte*, int> leased_;
  std::vector<Use> log_;
  std::vector<Use> declared_;
  int held_ = 0;
  int most_held_ = 0;
};

}  // namespace spillway

#endif  // SPILLWAY_TESTS_HEAP_ENGINE_H_
