// SPDX-License-Identifier: Apache-2.0
//
// An RMSNorm over engine tensors. The gradient of its weight is summed over fixed blocks of tokens,
// then over the blocks in order.

#ifndef SPILLWAY_TOOLS_TRAINER_NORM_LAYER_H_
#define SPILLWAY_TOOLS_TRAINER_NORM_LAYER_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "tools/trainer/context.h"
#include "tools/trainer/workspace.h"

namespace spillway::trainer {

// Scratch that all norms share. Only one norm is active at a time.
struct NormScratch {
  float* weight = nullptr;       // [width]
  float* inverse_rms = nullptr;  // [tokens], of the last Forward
  float* partial = nullptr;      // [blocks of tokens, width]

  void Bind(ScratchLayout& layout, int64_t tokens, int64_t width);
};

// Thread-compatible; context and scratch must outlive it.
class NormLayer {
 public:
  NormLayer(ModelContext* context, const NormScratch* scratch, size_t parameter);

  // Computes y[tokens, width] from x; y may be x. Rounds y as every operand of a product is.
  absl::Status Forward(const float* x, int64_t tokens, float* y) const;
  // Adds the input's gradient to dx and the weight's gradient to its tensor. REQUIRES: the last
  // Forward over the same scratch was on the same x.
  absl::Status Backward(const float* dy, const float* x, int64_t tokens, float* dx) const;

 private:
  absl::Status FetchWeight() const;

  ModelContext* context_;
  const NormScratch* scratch_;
  size_t parameter_;
  int64_t width_;
};

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_NORM_LAYER_H_
