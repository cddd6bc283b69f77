// SPDX-License-Identifier: Apache-2.0
//
// Gradient tensors and their norm. Each micro-batch's gradient of a tile is computed in fp32 and
// added to the tensor with one rounding. The sum of squares of the stored elements is recorded per
// tile, summed over fixed blocks. A frozen parameter has no gradient tensor, and its gradient is
// not computed.

#ifndef SPILLWAY_TOOLS_TRAINER_GRADIENTS_H_
#define SPILLWAY_TOOLS_TRAINER_GRADIENTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "spillway/engine.h"
#include "spillway/thread_pool.h"
#include "tools/trainer/model.h"
#include "tools/trainer/workspace.h"

namespace spillway::trainer {

// Thread-compatible. Engine, pool and parameters must outlive it.
class Gradients {
 public:
  // `micro_batches`: the number of micro-batches in a step.
  Gradients(Engine* engine, ThreadPool* pool, std::span<const Parameter> parameters,
            int64_t micro_batches);

  // Takes its scratch from `layout`: one tile in fp32 and the block sums.
  void Bind(ScratchLayout& layout);

  // Sets the micro-batch whose gradients come next. A step's first micro-batch overwrites tiles
  // instead of adding to them; its last also computes their sums of squares.
  void BeginMicroBatch(int64_t index);

  // Whether a use of a parameter is the one whose gradients come first in a step, or a later one.
  enum class UseOfParameter : uint8_t { kFirst, kLater };

  bool HasGradient(size_t parameter) const { return parameters_[parameter].tensors.is_trained(); }

  // Calls `compute` to fill a tile's gradient (fp32, row-major, every element), and adds it to the
  // tensor.
  absl::Status Add(size_t parameter, uint64_t tile, UseOfParameter use,
                   const std::function<void(float*)>& compute);

  // Calls `update` to add to a tile's stored elements in place (the embedding's few rows).
  absl::Status Update(size_t parameter, uint64_t tile, UseOfParameter use,
                      const std::function<void(DType, std::byte*)>& update);

  // Sums over tiles, in order of parameters, then tiles.
  GradientSummary Summary() const;

 private:
  // Adds `from` to a tile's stored elements, or overwrites them with it if `replace`; null changes
  // nothing. In the last micro-batch, computes the elements' sum of squares.
  void Accumulate(size_t parameter, uint64_t tile, const Lease& lease, const float* from,
                  bool replace);

  Engine* const engine_;
  ThreadPool* const pool_;
  const std::span<const Parameter> parameters_;
  const int64_t micro_batches_;
  int64_t largest_tile_ = 0;  // elements
  bool first_ = true;
  bool last_ = true;
  std::vector<DType> types_;               // by parameter
  std::vector<std::vector<double>> sums_;  // by parameter, then tile
  float* tile_scratch_ = nullptr;
  double* block_sums_ = nullptr;
};

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_GRADIENTS_H_
