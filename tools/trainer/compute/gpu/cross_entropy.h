// SPDX-License-Identifier: Apache-2.0
//
// Cross-entropy over a vocabulary that is processed one tile of columns at a time: an online
// softmax (Milakov and Gimelshein, arXiv:1805.02867) takes in each tile's logits, then come the
// loss and each tile's gradient. A block takes a token.

#ifndef SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_CROSS_ENTROPY_H_
#define SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_CROSS_ENTROPY_H_

#include <cmath>
#include <cstdint>

#include "src/simt/block.h"
#include "src/simt/device_code.h"
#include "src/simt/elements.h"
#include "tools/trainer/compute/gpu/elementwise_kernel.h"
#include "tools/trainer/compute/gpu/matrix.h"

namespace spillway::trainer::gpu {

// One token's softmax over the columns processed so far; `sum` is the sum of e^(logit − largest).
struct SoftmaxState {
  float largest;
  float sum;
  float target_logit;
};

// Before the first tile.
struct StartSoftmaxElements {
  SoftmaxState* states;
  int64_t tokens;

  SPILLWAY_SIMT int64_t elements() const { return tokens; }
  SPILLWAY_SIMT void Apply(int64_t i) const { states[i] = {-simt::kInfinity, 0.0f, 0.0f}; }
};
using StartSoftmax = Elementwise<StartSoftmaxElements>;

// Takes a tile's logits [tokens, columns] into each token's state. Column 0 is the vocabulary's
// first_token.
struct GatherSoftmax {
  static constexpr int kThreads = 256;
  template <class Block>
  using Shared = simt::Reduction<Block, float, kThreads>;

  Matrix logits;
  int64_t first_token;
  const int32_t* targets;
  SoftmaxState* states;

  int64_t blocks() const { return logits.rows; }

  template <class Block>
  SPILLWAY_SIMT void Run(Block& block, Shared<Block>& shared) const {
    const int64_t token = block.index();
    const SoftmaxState before = states[token];
    float largest = before.largest;
    simt::ForElements<kThreads>(block, 0, logits.columns, [&](int64_t i) {
      const float logit = logits.Get(token, i);
      largest = largest < logit ? logit : largest;
    });
    largest = simt::BlockMax(block, shared, largest);
    float sum = 0;
    simt::ForElements<kThreads>(block, 0, logits.columns, [&](int64_t i) {
      sum += std::exp(logits.Get(token, i) - largest);
    });
    sum = simt::BlockSum(block, shared, sum);
    if (block.thread() != 0) return;
    // Without columns before, largest may be -∞ twice.
    if (before.sum != 0) sum += before.sum * std::exp(before.largest - largest);
    const int64_t target = targets[token] - first_token;
    const bool is_here = target >= 0 && target < logits.columns;
    states[token] = {largest, sum, is_here ? logits.Get(token, target) : before.target_logit};
  }
};

// *loss += the mean of −log p(target) over the tokens, after all tiles.
struct AddLoss {
  static constexpr int kThreads = 256;
  template <class Block>
  using Shared = simt::Reduction<Block, double, kThreads>;

  const SoftmaxState* states;
  int64_t tokens;
  double* loss;

  int64_t blocks() const { return 1; }

  template <class Block>
  SPILLWAY_SIMT void Run(Block& block, Shared<Block>& shared) const {
    double sum = 0;
    simt::ForElements<kThreads>(block, 0, tokens, [&](int64_t i) {
      const SoftmaxState state = states[i];
      sum += std::log(state.sum) + (state.largest - state.target_logit);
    });
    sum = simt::BlockSum(block, shared, sum);
    if (block.thread() == 0) *loss += sum / static_cast<double>(tokens);
  }
};

// out[tokens, columns] = (p − [column is the target])·scale. It may be the logits.
struct CrossEntropyGradient {
  static constexpr int kThreads = 256;
  template <class Block>
  using Shared = simt::NoShared;

  Matrix logits;
  int64_t first_token;
  const int32_t* targets;
  const SoftmaxState* states;
  float scale;
  Matrix out;

  int64_t blocks() const { return logits.rows; }

  template <class Block>
  SPILLWAY_SIMT void Run(Block& block, simt::NoShared& /*shared*/) const {
    const int64_t token = block.index();
    const SoftmaxState state = states[token];
    const float factor = scale / state.sum;
    const int64_t target = targets[token] - first_token;
    simt::ForElements<kThreads>(block, 0, logits.columns, [&](int64_t i) {
      const float share = std::exp(logits.Get(token, i) - state.largest) * factor;
      out.Set(token, i, i == target ? share - scale : share);
    });
  }
};

}  // namespace spillway::trainer::gpu

#endif  // SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_CROSS_ENTROPY_H_
