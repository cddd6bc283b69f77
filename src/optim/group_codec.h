// SPDX-License-Identifier: Apache-2.0
//
// Encodes groups of moments as companded 8-bit codes with one scale, for compact state, after
// "FlashOptim: Optimizers for Memory Efficient Training" (arXiv:2602.23349). Two things differ from
// the paper: codes are roots, and a value between two codes is rounded at random, without bias in
// the value. FORMATS.md gives the reasons.

#ifndef SPILLWAY_OPTIM_GROUP_CODEC_H_
#define SPILLWAY_OPTIM_GROUP_CODEC_H_

#include <cstddef>
#include <cstdint>

#include "src/optim/block_codec.h"

namespace spillway::optim {

// Decode and encode groups of kGroupElements, the last of which may be shorter. Each group's scale
// is its largest magnitude as bf16, rounded up, on the growing map to a power of two. Scales are
// two bytes each and may be at any address. With scale s, a signed code c decodes to s·c·|c|/127²,
// and an unsigned code to s·(c/255)⁴; -128 decodes too.
//
// A value between two codes' values is rounded at random to one of them, so that the mean is the
// value itself. This uses bits of the element's random word that splitting a master weight does not
// use. On the unsigned maps a value above zero never gets the code of zero, and one below zero
// always does. A group with an element that is not finite gets a scale that is not finite, and
// decodes to such elements.
void DecodeGroups(CodeMap map, const std::byte* scales, const uint8_t* codes, int64_t n, float* to);
void EncodeGroups(CodeMap map, const float* from, const uint32_t* random_words, int64_t n,
                  std::byte* scales, uint8_t* codes);

}  // namespace spillway::optim

#endif  // SPILLWAY_OPTIM_GROUP_CODEC_H_
