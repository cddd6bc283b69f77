// SPDX-License-Identifier: Apache-2.0
//
// The order in which a run uses the windows of its data: file order, or a seeded permutation for
// each epoch. The permutation is computed, not stored, so that the position is all that a resume
// needs.

#ifndef SPILLWAY_TOOLS_TRAINER_WINDOW_ORDER_H_
#define SPILLWAY_TOOLS_TRAINER_WINDOW_ORDER_H_

#include <cstdint>

namespace spillway::trainer {

enum class Order : uint8_t { kSequential, kShuffled };

// Position p lies in epoch p / num_windows, and every epoch uses each window once. In file order
// all epochs are the same. In shuffled order the permutation follows from seed and epoch: a
// six-round Feistel network over the smallest even number of bits that holds every window's number,
// applied until the result is below num_windows.
class WindowOrder {
 public:
  // REQUIRES: num_windows >= 1.
  WindowOrder(Order order, uint64_t num_windows, uint64_t seed)
      : order_(order), num_windows_(num_windows), seed_(seed) {}

  // Returns the window at a position, in [0, num_windows).
  uint64_t WindowAt(uint64_t position) const;

 private:
  Order order_;
  uint64_t num_windows_;
  uint64_t seed_;
};

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_WINDOW_ORDER_H_
