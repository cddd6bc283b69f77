// SPDX-License-Identifier: Apache-2.0
//
// Which window of the data comes at which position of a run: in file order, or in a seeded
// permutation of each epoch. The permutation is computed, not stored, so that a position alone
// resumes it.

#ifndef SPILLWAY_TOOLS_TRAINER_WINDOW_ORDER_H_
#define SPILLWAY_TOOLS_TRAINER_WINDOW_ORDER_H_

#include <cstdint>

namespace spillway::trainer {

enum class Order : uint8_t { kSequential, kShuffled };

// Position p lies in epoch p / num_windows; every epoch takes each window once. In file order each
// epoch is the same; shuffled, its permutation follows from seed and epoch: a six-round Feistel
// network over the smallest even number of bits that holds num_windows, walked until it lands
// inside.
class WindowOrder {
 public:
  // REQUIRES: num_windows >= 1.
  WindowOrder(Order order, uint64_t num_windows, uint64_t seed)
      : order_(order), num_windows_(num_windows), seed_(seed) {}

  // The window at a position, in [0, num_windows).
  uint64_t WindowAt(uint64_t position) const;

 private:
  Order order_;
  uint64_t num_windows_;
  uint64_t seed_;
};

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_WINDOW_ORDER_H_
