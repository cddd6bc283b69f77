// SPDX-License-Identifier: Apache-2.0
//
// Kernels that compute each element of contiguous matrices by itself.

#ifndef SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_ELEMENTWISE_KERNEL_H_
#define SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_ELEMENTWISE_KERNEL_H_

#include <cstdint>

#include "src/simt/block.h"
#include "src/simt/device_code.h"

namespace spillway::trainer::gpu {

// Runs operation.Apply(i) for each i in [0, operation.elements()).
template <class Operation>
struct Elementwise {
  static constexpr int kThreads = 256;
  static constexpr int64_t kElements = 4 * kThreads;  // of a block
  template <class Block>
  using Shared = simt::NoShared;

  Operation operation;

  int64_t blocks() const { return simt::BlocksOf(operation.elements(), kElements); }

  template <class Block>
  SPILLWAY_SIMT void Run(Block& block, simt::NoShared& /*shared*/) const {
    const int64_t begin = block.index() * kElements;
    const int64_t n = operation.elements();
    const int64_t end = begin + kElements < n ? begin + kElements : n;
    simt::ForElements<kThreads>(block, begin, end, [&](int64_t i) { operation.Apply(i); });
  }
};

template <class Operation>
Elementwise(Operation) -> Elementwise<Operation>;

}  // namespace spillway::trainer::gpu

#endif  // SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_ELEMENTWISE_KERNEL_H_
