// SPDX-License-Identifier: Apache-2.0
//
// Conversion of a tensor's elements in host memory from and to fp32, for what reads and writes
// weights outside a step: first values, exports and hashes. On the calling thread.

#ifndef SPILLWAY_TOOLS_TRAINER_COMPUTE_ELEMENTS_H_
#define SPILLWAY_TOOLS_TRAINER_COMPUTE_ELEMENTS_H_

#include <cstddef>
#include <span>

#include "spillway/types.h"

namespace spillway::trainer {

// REQUIRES: the type is fp32, fp16 or bf16.
void ReadElements(DType type, const std::byte* from, std::span<float> to);
// Rounds to nearest, ties to even.
void WriteElements(DType type, std::span<const float> from, std::byte* to);

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_COMPUTE_ELEMENTS_H_
