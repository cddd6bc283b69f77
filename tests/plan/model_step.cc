// SPDX-License-Identifier: Apache-2.0

#include "tests/plan/model_step.h"

#include <vector>

namespace spillway::plan {
namespace {

// Records the step. The recorder's clock is the computing time so far.
class StepWriter {
 public:
  explicit StepWriter(const StepShape& shape) : shape_(shape) {
    for (int i = 0; i < shape_.layers * shape_.tiles_per_layer; ++i) {
      tiles_.push_back({Add(shape_.weight_bytes, Role::kParameter, false),
                        Add(shape_.gradient_bytes, Role::kGradient, true),
                        Add(shape_.master_bytes, Role::kMasterWeight, false),
                        Add(shape_.master_bytes, Role::kMoment, false),
                        Add(shape_.master_bytes, Role::kMoment, false)});
    }
    const int alive = shape_.by_layer ? shape_.micro_batches : 1;
    for (int i = 0; i < (shape_.layers + 1) * alive; ++i)
      checkpoints_.push_back(Add(shape_.checkpoint_bytes, Role::kActivation, true));
    for (int i = 0; i < alive; ++i)
      flowing_.push_back(Add(shape_.checkpoint_bytes, Role::kActivation, true));
  }

  Trace Write() {
    recorder_.Begin(0);
    if (shape_.by_layer) {
      for (int layer = 0; layer < shape_.layers; ++layer) {
        for (int batch = 0; batch < shape_.micro_batches; ++batch) Forward(layer, batch);
      }
      for (int layer = shape_.layers; layer-- > 0;) {
        for (int batch = 0; batch < shape_.micro_batches; ++batch) Backward(layer, batch);
      }
    } else {
      for (int batch = 0; batch < shape_.micro_batches; ++batch) {
        for (int layer = 0; layer < shape_.layers; ++layer) Forward(layer, batch);
        for (int layer = shape_.layers; layer-- > 0;) Backward(layer, batch);
      }
    }
    for (const Tile& tile : tiles_) Update(tile);
    return recorder_.End();
  }

 private:
  struct Tile {
    TileIndex weight, gradient, master, moment1, moment2;
  };

  TileIndex Add(uint64_t bytes, Role role, bool transient) {
    return recorder_.AddTile({bytes, role, transient, /*stored=*/!transient});
  }
  void Acquire(TileIndex tile, Tier tier, Access access) {
    recorder_.Acquire(tile, tier, access, now_, now_);
  }
  void Release(TileIndex tile, Tier tier, Access access) {
    recorder_.Release(tile, tier, access, now_);
  }
  // Returns the input of a layer. The layer after the last one stands for the last one's output.
  TileIndex Checkpoint(int layer, int batch) const {
    const int index = shape_.by_layer ? layer * shape_.micro_batches + batch : layer;
    return checkpoints_[static_cast<size_t>(index)];
  }
  const Tile& TileOf(int layer, int tile) const {
    const int index = layer * shape_.tiles_per_layer + tile;
    return tiles_[static_cast<size_t>(index)];
  }

  void Forward(int layer, int batch) {
    const TileIndex in = Checkpoint(layer, batch), out = Checkpoint(layer + 1, batch);
    if (layer == 0) {
      Acquire(in, Tier::kDevice, Access::kDiscard);
      Release(in, Tier::kDevice, Access::kDiscard);
    }
    Acquire(in, Tier::kDevice, Access::kRead);
    for (int i = 0; i < shape_.tiles_per_layer; ++i) {
      const TileIndex weight = TileOf(layer, i).weight;
      Acquire(weight, Tier::kDevice, Access::kRead);
      now_ += shape_.forward_seconds / shape_.tiles_per_layer;
      Release(weight, Tier::kDevice, Access::kRead);
    }
    Acquire(out, Tier::kDevice, Access::kDiscard);
    Release(out, Tier::kDevice, Access::kDiscard);
    Release(in, Tier::kDevice, Access::kRead);
  }

  void Backward(int layer, int batch) {
    const TileIndex in = Checkpoint(layer, batch), out = Checkpoint(layer + 1, batch);
    const TileIndex flowing = flowing_[shape_.by_layer ? static_cast<size_t>(batch) : 0];
    const bool is_first = layer + 1 == shape_.layers;
    const Access flows = is_first ? Access::kDiscard : Access::kReadWrite;
    const Access adds = batch == 0 ? Access::kDiscard : Access::kReadWrite;
    Acquire(flowing, Tier::kDevice, flows);
    Acquire(in, Tier::kDevice, Access::kRead);
    for (int i = 0; i < shape_.tiles_per_layer; ++i) {
      const Tile& tile = TileOf(layer, i);
      Acquire(tile.weight, Tier::kDevice, Access::kRead);
      Acquire(tile.gradient, Tier::kDevice, adds);
      now_ += 2 * shape_.forward_seconds / shape_.tiles_per_layer;
      Release(tile.gradient, Tier::kDevice, adds);
      Release(tile.weight, Tier::kDevice, Access::kRead);
    }
    Release(in, Tier::kDevice, Access::kRead);
    Release(flowing, Tier::kDevice, flows);
    if (is_first) recorder_.Discard(out, now_);
    recorder_.Discard(in, now_);
    if (layer == 0) recorder_.Discard(flowing, now_);
  }

  void Update(const Tile& tile) {
    Acquire(tile.gradient, Tier::kPinned, Access::kRead);
    for (const TileIndex state : {tile.master, tile.moment1, tile.moment2})
      Acquire(state, Tier::kPinned, Access::kReadWrite);
    Acquire(tile.weight, Tier::kPinned, Access::kDiscard);
    now_ += shape_.update_seconds / shape_.tiles_per_layer;
    Release(tile.weight, Tier::kPinned, Access::kDiscard);
    for (const TileIndex state : {tile.moment2, tile.moment1, tile.master})
      Release(state, Tier::kPinned, Access::kReadWrite);
    Release(tile.gradient, Tier::kPinned, Access::kRead);
    recorder_.Discard(tile.gradient, now_);
  }

  const StepShape shape_;
  TraceRecorder recorder_;
  double now_ = 0;
  std::vector<Tile> tiles_;
  std::vector<TileIndex> checkpoints_, flowing_;
};

}  // namespace

Trace StepTrace(const StepShape& shape) { return StepWriter(shape).Write(); }

}  // namespace spillway::plan
