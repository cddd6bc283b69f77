// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/recording_engine.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace spillway::trainer {
namespace {

absl::Status NoStore() { return absl::FailedPreconditionError("a dry run has no store"); }

class DryStream final : public Stream {
 public:
  absl::Status Launch(std::function<void()> /*work*/) override { return absl::OkStatus(); }
  absl::Status Synchronize() override { return absl::OkStatus(); }
  void* native_handle() override { return nullptr; }
};

}  // namespace

std::vector<Use> RecordingEngine::Uses() const {
  std::vector<Use> uses;
  for (const LeaseEvent& event : events_) {
    if (event.kind == LeaseEvent::Kind::kAcquire)
      uses.push_back({event.tile, event.tier, event.access});
  }
  return uses;
}

absl::StatusOr<TensorId> RecordingEngine::Register(const TensorSpec& spec,
                                                   const Reader& /*reader*/) {
  specs_.push_back(spec);
  return TensorId{static_cast<uint32_t>(specs_.size() - 1)};
}

absl::Status RecordingEngine::Unregister(TensorId /*id*/) { return NoStore(); }
absl::Status RecordingEngine::ForgetName(std::string_view /*name*/) { return NoStore(); }

absl::StatusOr<TensorId> RecordingEngine::Find(std::string_view name) const {
  for (uint32_t i = 0; i < specs_.size(); ++i) {
    if (specs_[i].name == name) return TensorId{i};
  }
  return absl::NotFoundError(absl::StrCat("no tensor is named ", std::string(name)));
}

absl::Status RecordingEngine::CheckTile(TileRef tile) const {
  if (of_ != nullptr) return of_->CheckTile(tile);
  if (tile.tensor.value < specs_.size() && tile.tile < specs_[tile.tensor.value].num_tiles())
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("there is no tile ", tile.tile, " of tensor ", tile.tensor.value));
}

absl::Status RecordingEngine::Commit(std::string_view /*user_state*/) { return NoStore(); }
absl::Status RecordingEngine::Snapshot(std::string_view /*label*/) { return NoStore(); }
absl::StatusOr<std::vector<SnapshotInfo>> RecordingEngine::Snapshots() { return NoStore(); }
absl::Status RecordingEngine::Restore(std::string_view /*label*/) { return NoStore(); }
absl::Status RecordingEngine::Drop(std::string_view /*label*/) { return NoStore(); }

absl::StatusOr<std::unique_ptr<Stream>> RecordingEngine::CreateStream() {
  return std::make_unique<DryStream>();
}
absl::StatusOr<std::unique_ptr<Stream>> RecordingEngine::WrapStream(void* /*native*/) {
  return CreateStream();
}

void RecordingEngine::EndLease(const Lease& lease) {
  auto* const use = reinterpret_cast<Use*>(lease.data());
  events_.push_back({use->tile, LeaseEvent::Kind::kRelease, use->tier, use->access});
  free_.push_back(use);
}

}  // namespace spillway::trainer
