// SPDX-License-Identifier: Apache-2.0
//
// Groups of moments as companded 8-bit codes with one scale, of compact state, after "FlashOptim:
// Optimizers for Memory Efficient Training" (arXiv:2602.23349). Otherwise than there, codes are
// roots, and a value between two is rounded at random, without bias in the value. FORMATS.md says
// why.

#ifndef SPILLWAY_OPTIM_GROUP_CODEC_H_
#define SPILLWAY_OPTIM_GROUP_CODEC_H_

#include <cstddef>
#include <cstdint>

#include "src/optim/block_codec.h"

namespace spillway::optim {

// Groups of kGroupElements, the last of which may be shorter. Each group's scale is its largest
// magnitude as bf16, rounded up; scales are two bytes each and may lie at any address. With s the
// scale, a signed code c is the value s·c·|c|/127², an unsigned one s·(c/255)⁴; -128 decodes too. A
// value between two becomes either, by bits of its random word that splitting a master weight does
// not take, so that the mean is the value itself. On the unsigned map a value above zero never gets
// the code of zero, and one below zero does. A group with an element that is not finite gets a
// scale that is not, and decodes so.
void DecodeGroups(CodeMap map, const std::byte* scales, const uint8_t* codes, int64_t n, float* to);
void EncodeGroups(CodeMap map, const float* from, const uint32_t* random_words, int64_t n,
                  std::byte* scales, uint8_t* codes);

}  // namespace spillway::optim

#endif  // SPILLWAY_OPTIM_GROUP_CODEC_H_
