// SPDX-License-Identifier: Apache-2.0
//
// Kernels, and what the threads of a block do together. A kernel is a struct: its members are the
// arguments, and Run is the code of one thread. It is a template over the block in which it runs: a
// GPU's (gpu_block.cuh), or one that is emulated on the host and reports what a GPU would not
// (emulated_block.h).
//
//   struct Square {
//     static constexpr int kThreads = 256;                             // of a block
//     template <class Block> using Shared = simt::NoShared;            // what its threads share
//
//     const float* x;
//     float* y;
//     int64_t n;
//
//     int64_t blocks() const { return simt::BlocksOf(n, kThreads); }   // of the grid; 0: nothing
//     runs template <class Block> SPILLWAY_SIMT void Run(Block& block, simt::NoShared&) const {
//       const int64_t i = block.index() * kThreads + block.thread();
//       if (i < n) y[i] = x[i] * x[i];
//     }
//   };
//
// A block has:
//
//   int thread() const;                  from 0 on
//   int64_t index() const;               of the block in the grid
//   void Sync();                         a barrier for all threads of the block
//   template <class T, int kSize> Array  memory that the threads share: Read(i), Write(i, value)
//
// Arrays are the members of Shared<Block>. Their elements are undefined until they are written.
// Between two barriers, no thread may access an element that another one writes. Blocks run in any
// order, and none waits for another. There are no atomic operations, and a grid follows from sizes
// alone, so that a result depends neither on the order of threads nor on the GPU.

#ifndef SPILLWAY_SIMT_BLOCK_H_
#define SPILLWAY_SIMT_BLOCK_H_

#include <cstdint>

#include "src/simt/device_code.h"

namespace spillway::simt {

// Of a kernel whose threads share nothing.
struct NoShared {};

// Returns the number of blocks that n elements need.
SPILLWAY_SIMT constexpr int64_t BlocksOf(int64_t n, int64_t elements_of_block) {
  return (n + elements_of_block - 1) / elements_of_block;
}

// Calls body(i) for this thread's share of [begin, end). Neighbouring threads take neighbouring
// elements.
template <int kThreads, class Block, class Body>
SPILLWAY_SIMT void ForElements(const Block& block, int64_t begin, int64_t end, const Body& body) {
  for (int64_t i = begin + block.thread(); i < end; i += kThreads) body(i);
}

// What BlockSum and BlockMax share among the threads. It may be used again at once: two barriers
// separate each write from the reads before it.
template <class Block, class T, int kThreads>
struct Reduction {
  static constexpr int kGroups = 16;
  static_assert(kThreads % kGroups == 0);
  typename Block::template Array<T, kThreads> values;
  typename Block::template Array<T, kGroups> results;
};

// Combines a value of each thread, in an order that follows from kThreads. Every thread gets the
// result. REQUIRES: all threads of the block call it.
template <class Block, class T, int kThreads, class Combine>
SPILLWAY_SIMT T Reduce(Block& block, Reduction<Block, T, kThreads>& shared, T value,
                       const Combine& combine) {
  constexpr int kGroups = Reduction<Block, T, kThreads>::kGroups;
  const int thread = block.thread();
  shared.values.Write(thread, value);
  block.Sync();
  if (thread < kGroups) {
    T result = shared.values.Read(thread);
    for (int i = thread + kGroups; i < kThreads; i += kGroups)
      result = combine(result, shared.values.Read(i));
    shared.results.Write(thread, result);
  }
  block.Sync();
  T result = shared.results.Read(0);
  for (int i = 1; i < kGroups; ++i) result = combine(result, shared.results.Read(i));
  return result;
}

template <class Block, class T, int kThreads>
SPILLWAY_SIMT T BlockSum(Block& block, Reduction<Block, T, kThreads>& shared, T value) {
  return Reduce(block, shared, value, [](T a, T b) { return a + b; });
}

// A NaN among the values may be dropped.
template <class Block, class T, int kThreads>
SPILLWAY_SIMT T BlockMax(Block& block, Reduction<Block, T, kThreads>& shared, T value) {
  return Reduce(block, shared, value, [](T a, T b) { return a < b ? b : a; });
}

}  // namespace spillway::simt

#endif  // SPILLWAY_SIMT_BLOCK_H_
