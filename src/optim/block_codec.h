// SPDX-License-Identifier: Apache-2.0
//
// Blocks of moments as 8-bit codes with one scale: the blockwise dynamic quantisation of Dettmers,
// Lewis, Shleifer and Zettlemoyer, "8-bit Optimizers via Block-wise Quantization"
// (arXiv:2110.02861).
//
// A block's scale is its largest magnitude. An element over the scale is rounded to the nearest of
// 256 values, as in the paper: seven decades from 1e-7 to 1 with ever more values, and zero. First
// moments have values of either sign, second moments, which are never negative, twice as many. One
// thing is otherwise: a second moment that is not zero never gets the code of zero, since a step is
// divided by its root.

#ifndef SPILLWAY_OPTIM_BLOCK_CODEC_H_
#define SPILLWAY_OPTIM_BLOCK_CODEC_H_

#include <array>
#include <cstddef>
#include <cstdint>

namespace spillway::optim {

enum class CodeMap : uint8_t { kSigned, kUnsigned };

// The values of the codes 0 to 255, ascending, at most 1.
const std::array<float, 256>& CodeValues(CodeMap map);

// One block of at most kBlockElements. Any bytes decode to something; zeros decode to zeros. The
// scale may lie at any address. Half way between two values, as fp32 computes it, the one further
// from zero is taken; below zero on the unsigned map the code is that of zero. A block with an
// element that is not finite gets a scale that is not, and decodes so.
void DecodeBlock(CodeMap map, const std::byte* scale, const uint8_t* codes, int64_t n, float* to);
void EncodeBlock(CodeMap map, const float* from, int64_t n, std::byte* scale, uint8_t* codes);

}  // namespace spillway::optim

#endif  // SPILLWAY_OPTIM_BLOCK_CODEC_H_
