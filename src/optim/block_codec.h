// SPDX-License-Identifier: Apache-2.0
//
// Encodes blocks of moments as 8-bit codes with one scale: the blockwise dynamic quantisation of
// Dettmers, Lewis, Shleifer and Zettlemoyer, "8-bit Optimizers via Block-wise Quantization"
// (arXiv:2110.02861).
//
// A block's scale is its largest magnitude. The ratio of an element to the scale is rounded to the
// nearest of 256 values, as in the paper: zero, and seven decades from 1e-7 to 1, each with more
// values than the one below it. First moments have values of either sign. Second moments are never
// negative, so their map has twice as many positive values. One thing differs from the paper: a
// second moment that is not zero never gets the code of zero, since a step is divided by its root.

#ifndef SPILLWAY_OPTIM_BLOCK_CODEC_H_
#define SPILLWAY_OPTIM_BLOCK_CODEC_H_

#include <cstddef>
#include <cstdint>

#include "src/optim/code_levels.h"

namespace spillway::optim {

// Returns the values of the codes 0 to 255, in ascending order, at most 1.
const CodeTable& CodeValues(CodeMap map);

// Returns how codes are found: the values of kGrowing are those of kUnsigned.
const CodeLevels& LevelsOfCodes(CodeMap map);

// Decode and encode one block of at most kBlockElements. Any bytes decode to something; zeros
// decode to zeros. The scale may be at any address. A value half way between two codes' values, as
// fp32 computes it, gets the one further from zero. On the unsigned maps, a value below zero gets
// the code of zero. A block with an element that is not finite gets a scale that is not finite, and
// decodes to such elements.
void DecodeBlock(CodeMap map, const std::byte* scale, const uint8_t* codes, int64_t n, float* to);
void EncodeBlock(CodeMap map, const float* from, int64_t n, std::byte* scale, uint8_t* codes);

}  // namespace spillway::optim

#endif  // SPILLWAY_OPTIM_BLOCK_CODEC_H_
