// SPDX-License-Identifier: Apache-2.0
//
// What computes a run on a GPU, in words: bits are the same while all of it stays the same.

#ifndef SPILLWAY_TOOLS_TRAINER_COMPUTE_COMPUTED_BY_H_
#define SPILLWAY_TOOLS_TRAINER_COMPUTE_COMPUTED_BY_H_

#include <string>
#include <vector>

namespace spillway::trainer {

struct ComputedBy {
  std::string gpu;                      // "NVIDIA H200, compute capability 9.0"
  std::string library;                  // of products: "cuBLASLt 13.1.0"
  std::vector<std::string> algorithms;  // a line for each shape of a product that was chosen

  friend bool operator==(const ComputedBy&, const ComputedBy&) = default;
};

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_COMPUTE_COMPUTED_BY_H_
