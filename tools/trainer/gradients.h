// SPDX-License-Identifier: Apache-2.0
//
// Gradient tensors and their norm. A micro-batch's gradient of a tile is computed in fp32 and added
// to the tensor with one rounding; the sum of squares of what is stored is kept by tile, over fixed
// blocks. A frozen parameter has none: what would be added to it is not computed.

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
  // `micro_batches`: of a step.
  Gradients(Engine* engine, ThreadPool* pool, std::span<const Parameter> parameters,
            int64_t micro_batches);

  // States its scratch: one tile in fp32 and the block sums.
  void Bind(ScratchLayout& layout);

  // Whose gradients come next: a step's first writes tiles and does not add to them; with its last
  // their sums of squares are taken.
  void BeginMicroBatch(int64_t index);

  // The use of a parameter whose gradients come first in a step, and any after it.
  enum class UseOfParameter : uint8_t { kFirst, kLater };

  bool HasGradient(size_t parameter) const { return parameters_[parameter].tensors.is_trained(); }

  // Has `compute` fill a tile's gradient (fp32, row-major, every element) and adds it.
  absl::Status Add(size_t parameter, uint64_t tile, UseOfParameter use,
                   const std::function<void(float*)>& compute);

  // Has `update` add to a tile's stored elements itself (the embedding's few rows).
  absl::Status Update(size_t parameter, uint64_t tile, UseOfParameter use,
                      const std::function<void(DType, std::byte*)>& update);

  // Sums over tiles in order of parameters and tiles.
  GradientSummary Summary() const;

 private:
  // Adds `from` (null: nothing) into a tile's stored elements, and takes their sum of squares at
  // the last.
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
