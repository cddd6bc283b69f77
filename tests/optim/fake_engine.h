// SPDX-License-Identifier: Apache-2.0
//
// An engine whose tiles are plain heap memory, for tests of the calls that an engine receives. It
// records every lease, and can refuse a lease or a discard. It has no tiers, no threads and no
// budget.

#ifndef SPILLWAY_TESTS_OPTIM_FAKE_ENGINE_H_
#define SPILLWAY_TESTS_OPTIM_FAKE_ENGINE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "spillway/engine.h"

namespace spillway {

class FakeEngine : public Engine {
 public:
  absl::StatusOr<TensorId> Register(const TensorSpec& spec, const Reader& reader) override {
    specs_.push_back(std::make_unique<TensorSpec>(spec));
    bytes_.emplace_back(spec.size_bytes());
    if (reader) {
      const absl::Status status = reader(0, bytes_.back());
      if (!status.ok()) return status;
    }
    return TensorId{static_cast<uint32_t>(specs_.size() - 1)};
  }
  const TensorSpec& Spec(TensorId id) const override { return *specs_.at(id.value); }
  absl::Status CheckTile(TileRef tile) const override {
    if (tile.tensor.value < specs_.size()) return absl::OkStatus();
    return absl::InvalidArgumentError("the fake has no such tensor");
  }

  absl::StatusOr<Lease> AcquireHost(TileRef tile, Access access) override {
    if (uses.size() == refuse_at) return absl::DataLossError("the page is rotten");
    uses.push_back({tile, Tier::kPinned, access});
    max_held = std::max(max_held, ++held);
    const TensorSpec& spec = Spec(tile.tensor);
    const std::span<std::byte> bytes(bytes_.at(tile.tensor.value));
    return MakeLease(bytes.subspan(spec.tile_offset_bytes(tile.tile), spec.tile_bytes(tile.tile)),
                     tile, Tier::kPinned, access);
  }

  template <typename T>
  std::span<T> Content(TensorId id) {
    std::vector<std::byte>& bytes = bytes_.at(id.value);
    return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
  }

  // The rest of the interface does nothing, except that Discard is recorded and can fail.
  absl::Status Unregister(TensorId) override { return absl::OkStatus(); }
  absl::StatusOr<TensorId> Find(std::string_view) const override {
    return absl::NotFoundError("fake");
  }
  absl::StatusOr<Lease> Acquire(TileRef tile, Access access, Stream*) override {
    return AcquireHost(tile, access);
  }
  absl::Status Prefetch(std::span<const Use>) override { return absl::OkStatus(); }
  void ClearPrefetch() override {}
  absl::Status Evict(TileRef) override { return absl::OkStatus(); }
  absl::Status Discard(TileRef tile) override {
    discards.push_back({tile, uses.size()});
    return discard_status;
  }
  absl::Status EndStep() override { return absl::OkStatus(); }
  absl::Status Commit(std::string_view) override { return absl::OkStatus(); }
  std::optional<std::string> UserState() const override { return std::nullopt; }
  absl::Status Snapshot(std::string_view) override { return absl::OkStatus(); }
  absl::StatusOr<std::vector<SnapshotInfo>> Snapshots() override {
    return std::vector<SnapshotInfo>();
  }
  absl::Status Restore(std::string_view) override { return absl::OkStatus(); }
  absl::Status Drop(std::string_view) override { return absl::OkStatus(); }
  absl::StatusOr<std::unique_ptr<Stream>> CreateStream() override {
    return absl::NotFoundError("fake");
  }
  EngineStats Stats() const override { return {}; }
  uint64_t page_bytes() const override { return kMiB; }

  struct Discarded {
    TileRef tile;
    size_t num_uses;  // leases granted before the discard
  };
  std::vector<Use> uses;  // of leases granted
  std::vector<Discarded> discards;
  absl::Status discard_status;  // what Discard returns
  size_t refuse_at = std::numeric_limits<size_t>::max();
  int held = 0;
  int max_held = 0;

 protected:
  void EndLease(const Lease&) override { --held; }

 private:
  std::vector<std::unique_ptr<TensorSpec>> specs_;
  std::vector<std::vector<std::byte>> bytes_;
};

}  // namespace spillway

#endif  // SPILLWAY_TESTS_OPTIM_FAKE_ENGINE_H_
