// SPDX-License-Identifier: Apache-2.0
//
// A master weight as a 16-bit weight and an 8-bit residual, of compact state. The idea is that of
// Gonzalez Ortiz, Gupta, Renard and Blalock, "FlashOptim: Optimizers for Memory Efficient Training"
// (arXiv:2602.23349). Otherwise than there, a residual counts in 256ths of the steps between
// weights, so that both are one number of 8 more bits, which integer additions join and split; and
// splitting rounds at random, without bias. FORMATS.md says why.

#ifndef SPILLWAY_OPTIM_SPLIT_MASTER_H_
#define SPILLWAY_OPTIM_SPLIT_MASTER_H_

#include <cstdint>

#include "spillway/types.h"

namespace spillway::optim {

// A random word with which master weights are rounded to nearest, and half way between two away
// from zero. Rounding takes a word's lowest 8 bits.
inline constexpr uint32_t kNearestWord = 0x80;

// `dtype` is f16 or bf16. The weight is the master weight's nearest. A finite master weight stays
// finite: one past the largest weight becomes that and the largest residual. One that is not finite
// is a weight that is not, with a residual of zero; beside such a weight a residual means nothing.
// Any bytes decode to something: below zero a magnitude is taken for zero.
void DecodeMasters(DType dtype, const void* weights, const uint8_t* residuals, int64_t n,
                   float* masters);
void EncodeMasters(DType dtype, const float* masters, const uint32_t* random_words, int64_t n,
                   void* weights, uint8_t* residuals);

}  // namespace spillway::optim

#endif  // SPILLWAY_OPTIM_SPLIT_MASTER_H_
