// SPDX-License-Identifier: Apache-2.0
//
// How elements that are numbers of their own rest, and their way to fp32 and back: a table by
// DType, so that another type of weight is a row more. Moments as bf16 are rounded at random;
// FORMATS.md says why.

#ifndef SPILLWAY_OPTIM_ELEMENT_CODECS_H_
#define SPILLWAY_OPTIM_ELEMENT_CODECS_H_

#include <cstdint>
#include <string_view>

#include "spillway/types.h"

namespace spillway::optim {

// Of runs that lie in memory, aligned to their elements.
struct ElementCodec {
  uint64_t element_bytes;
  void (*decode)(const void* from, int64_t n, float* to);
  void (*encode)(const float* from, int64_t n, void* to);  // rounds to nearest even
};

// REQUIRES: f32, f16 or bf16.
const ElementCodec& CodecOf(DType dtype);

// Copies to where the bytes are not read soon: a cache line that is written whole is not read from
// memory first. Other threads may read it after FlushStreamed. Any addresses; those of 64 bytes
// make it quick.
void CopyStreamed(const void* from, int64_t size_bytes, void* to);
void FlushStreamed();

// What keys the random rounding of a tensor in a step: other tensors and other steps have others.
uint64_t RoundingKey(std::string_view tensor, int64_t step);

// 32 random bits for each of n elements, of which `first_element` counts in the tensor: of the key
// and the element's place alone.
void FillRandomWords(uint64_t key, uint64_t first_element, int64_t n, uint32_t* words);

// Rounds to one of the two neighbours in bf16, so that the mean over keys is the value itself:
// `first_element` counts in the tensor, and an element's result depends on the key, its place and
// its value alone. Finite values stay finite, at most 0x7f7f.
void EncodeBf16Randomly(const float* from, int64_t n, uint64_t key, uint64_t first_element,
                        uint16_t* to);

}  // namespace spillway::optim

#endif  // SPILLWAY_OPTIM_ELEMENT_CODECS_H_
