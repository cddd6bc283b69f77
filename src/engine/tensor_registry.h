// SPDX-License-Identifier: Apache-2.0
//
// The engine's tensors: their names, their specs and which tiles they have. Tensors can be
// registered and unregistered while others are leased. The mover moves the tiles.

#ifndef SPILLWAY_ENGINE_TENSOR_REGISTRY_H_
#define SPILLWAY_ENGINE_TENSOR_REGISTRY_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "io/store/store.h"
#include "spillway/engine.h"
#include "spillway/timeline.h"
#include "src/base/mutex.h"
#include "src/base/stable_array.h"
#include "src/engine/mover.h"
#include "src/engine/pager/tile_table.h"
#include "src/engine/resting_room.h"

namespace spillway::engine {

// Returns the form of a spec that the catalog stores, and that is compared when the store is
// reopened.
std::string DescribeSpec(const TensorSpec& spec);

// Thread-safe.
class TensorRegistry {
 public:
  // Writes the first bytes of a tile.
  using FillTile = std::function<absl::Status(TileIndex, TileRef)>;

  // Must be called before any other function but DescribeTile, which the mover may call earlier.
  // `mover` must outlive all other calls.
  void Begin(Mover* mover, bool has_store, uint64_t page_bytes, RestingRoom rests);

  // Returns the tensor with this spec: the one that is registered, the last commit's, or a new one.
  // `fill` fills the tiles of a new tensor; if it is null, they are zeros. Waits while another
  // thread registers the name. InvalidArgument: the spec is invalid, or differs from that of the
  // tensor of this name. ResourceExhausted: the tensor does not fit where its role rests, or leases
  // are in its way. If `fill` fails or throws, no tensor is left. A tensor that the last commit has
  // stays in the store if its frames cannot be taken.
  absl::StatusOr<TensorId> Register(const TensorSpec& spec, const FillTile& fill);
  // Unregisters a tensor. Its id is void afterwards, and the next commit does not have the tensor.
  // FailedPrecondition: a tile of it is leased.
  absl::Status Unregister(TensorId id);
  // Unregisters the tensor of this name, also if only the last commit has it.
  absl::Status ForgetName(std::string_view name);
  // Runs `change` while no tensor is added or removed.
  absl::Status WhileNoneChanges(const std::function<absl::Status()>& change);

  absl::StatusOr<TensorId> Find(std::string_view name) const;
  // InvalidArgument: there never was such a tile. NotFound: its tensor was unregistered, or is
  // still being registered.
  absl::StatusOr<TileIndex> IndexOf(TileRef tile) const;
  // REQUIRES for Spec and FirstTile: the tensor is, or was, registered.
  const TensorSpec& Spec(TensorId id) const { return tensors_[id.value].spec; }
  TileIndex FirstTile(TensorId id) const { return tensors_[id.value].first_tile; }
  // "tensor 'NAME' tile N".
  std::string DescribeTile(TileIndex tile) const;
  std::vector<Timeline::Tensor> Tensors() const;

 private:
  struct Tensor {
    const TensorSpec spec;
    const TileIndex first_tile = 0;
    const io::TensorIndex stored_as = 0;  // in the store, if there is one
    enum class State : uint8_t { kFilling, kThere, kGone };
    std::atomic<State> state = State::kFilling;
  };
  // What the store holds of a tensor.
  struct StoredTensor {
    io::TensorIndex tensor = 0;
    bool is_found = false;        // the last commit has it
    std::vector<bool> has_bytes;  // by tile
  };

  absl::StatusOr<std::optional<TensorId>> FindOrReserve(const TensorSpec& spec);
  void Publish(const std::string& name, std::optional<TensorId> id);
  absl::StatusOr<TensorId> Make(const TensorSpec& spec, const FillTile& fill);
  uint64_t PagesPerTile(const TensorSpec& spec) const;
  // Finds the tensor in the store, or adds it.
  absl::StatusOr<StoredTensor> Store(const TensorSpec& spec)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(changes_mu_);
  TensorId AddTiles(const TensorSpec& spec, const StoredTensor& stored)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(changes_mu_);
  // Takes the frames of the tensor's tiles, if they rest in memory.
  absl::Status Reserve(TensorId id);
  absl::Status Fill(TensorId id, const FillTile& fill);
  absl::Status Remove(TensorId id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(changes_mu_);
  absl::Status Forget(TensorId id, Stored stored) ABSL_EXCLUSIVE_LOCKS_REQUIRED(changes_mu_);

  // Constant after Begin.
  Mover* mover_ = nullptr;
  bool has_store_ = false;
  uint64_t page_bytes_ = 0;

  // Held while a tensor is added or removed, and while all tensors get the bytes of another commit.
  base::Mutex changes_mu_;
  RestingRoom rests_ ABSL_GUARDED_BY(changes_mu_);
  base::StableArray<Tensor> tensors_;  // by TensorId

  mutable base::Mutex names_mu_;
  // An empty id: the tensor is being registered.
  std::map<std::string, std::optional<TensorId>, std::less<>> by_name_ ABSL_GUARDED_BY(names_mu_);
  base::CondVar published_;
  std::vector<std::pair<TileIndex, std::string>> names_
      ABSL_GUARDED_BY(names_mu_);  // first tile, name; for messages
};

}  // namespace spillway::engine

#endif  // SPILLWAY_ENGINE_TENSOR_REGISTRY_H_
