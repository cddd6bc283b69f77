// SPDX-License-Identifier: Apache-2.0
//
// Splits a master weight into a 16-bit weight and an 8-bit residual, for compact state. The idea is
// that of Gonzalez Ortiz, Gupta, Renard and Blalock, "FlashOptim: Optimizers for Memory Efficient
// Training" (arXiv:2602.23349). Two things differ from the paper. A residual counts in 256ths of
// the step between neighbouring weights, so that weight and residual are one number with 8 more
// bits, which integer additions join and split. And splitting rounds at random, without bias.
// FORMATS.md gives the reasons.

#ifndef SPILLWAY_OPTIM_SPLIT_MASTER_H_
#define SPILLWAY_OPTIM_SPLIT_MASTER_H_

#include <cstdint>

#include "spillway/types.h"

namespace spillway::optim {

// The random word that rounds master weights to nearest, and a value half way between two away from
// zero. Rounding uses a word's lowest 8 bits.
inline constexpr uint32_t kNearestWord = 0x80;

// `dtype` is f16 or bf16. The weight is the 16-bit value that is nearest to the master weight. A
// finite master weight stays finite: one past the largest weight becomes that weight with the
// largest residual. A master weight that is not finite becomes a weight that is not finite, with a
// residual of zero; decoding ignores the residual beside such a weight. Any bytes decode to
// something: a magnitude below zero decodes to zero.
void DecodeMasters(DType dtype, const void* weights, const uint8_t* residuals, int64_t n,
                   float* masters);
void EncodeMasters(DType dtype, const float* masters, const uint32_t* random_words, int64_t n,
                   void* weights, uint8_t* residuals);

}  // namespace spillway::optim

#endif  // SPILLWAY_OPTIM_SPLIT_MASTER_H_
