// SPDX-License-Identifier: Apache-2.0
//
// The leases of an engine: takes them and ends them.

#ifndef SPILLWAY_ENGINE_LEASING_ENGINE_H_
#define SPILLWAY_ENGINE_LEASING_ENGINE_H_

#include <unistd.h>

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spillway/engine.h"
#include "src/base/forks.h"
#include "src/engine/mover.h"
#include "src/engine/tensor_registry.h"

namespace spillway {

class LeasingEngine : public Engine {
 public:
  const TensorSpec& Spec(TensorId id) const final { return tensors_.Spec(id); }
  absl::Status CheckTile(TileRef tile) const final { return Index(tile).status(); }
  absl::Status CheckProcess() const final;
  uint64_t page_bytes() const final { return page_bytes_; }
  absl::StatusOr<Lease> Acquire(TileRef tile, Access access, Stream* stream) final;
  absl::StatusOr<Lease> AcquireHost(TileRef tile, Access access) final;

 protected:
  void EndLease(const Lease& lease) final;

  absl::StatusOr<engine::TileIndex> Index(TileRef tile) const;
  // Leases a tile. REQUIRES: `index` is the tile's.
  absl::StatusOr<Lease> TakeAt(engine::TileIndex index, TileRef tile, Tier tier, Access access,
                               Stream* stream);
  engine::TransferThread& transfers() const { return mover_->transfers(); }

  const base::ForkGuard process_;
  uint64_t page_bytes_ = 0;  // constant once the engine is open
  engine::TensorRegistry tensors_;
  // Its threads use the engine, so a derived class ends it in its destructor.
  std::unique_ptr<engine::Mover> mover_;

 private:
  engine::TileIndex IndexOf(const Lease& lease) const {
    return tensors_.FirstTile(lease.tile_.tensor) + lease.tile_.tile;
  }

  const pid_t pid_ = getpid();
};

}  // namespace spillway

#endif  // SPILLWAY_ENGINE_LEASING_ENGINE_H_
