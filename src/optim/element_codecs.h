// SPDX-License-Identifier: Apache-2.0
//
// Converts elements that rest as f32, f16 or bf16 to fp32 and back. The codecs are a table by
// DType, so that another type of weight is one more row. Moments in bf16 are rounded at random;
// FORMATS.md gives the reason. The random bits of this rounding and copies with streaming stores
// are here too.

#ifndef SPILLWAY_OPTIM_ELEMENT_CODECS_H_
#define SPILLWAY_OPTIM_ELEMENT_CODECS_H_

#include <cstdint>
#include <string_view>

#include "spillway/types.h"

namespace spillway::optim {

// Conversions of runs in memory, which are aligned to their element size.
struct ElementCodec {
  uint64_t element_bytes;
  void (*decode)(const void* from, int64_t n, float* to);
  void (*encode)(const float* from, int64_t n, void* to);  // rounds to nearest even
};

// Returns the codec of a type. REQUIRES: `dtype` is f32, f16 or bf16.
const ElementCodec& CodecOf(DType dtype);

// Copies with streaming stores, for bytes that are not read soon: a cache line that is written
// whole is not read from memory first. Other threads may read the copy after FlushStreamed.
// Addresses may be any; multiples of 64 bytes are fast.
void CopyStreamed(const void* from, int64_t size_bytes, void* to);
void FlushStreamed();

// Returns the key of a tensor's random rounding in a step. Other tensors and other steps have other
// keys.
uint64_t RoundingKey(std::string_view tensor, int64_t step);

// Writes 32 random bits for each of n elements. `first_element` is the index of the first one in
// the tensor. An element's bits depend on the key and its index alone.
void FillRandomWords(uint64_t key, uint64_t first_element, int64_t n, uint32_t* words);

// Rounds each value at random to one of its two neighbours in bf16, so that the mean over keys is
// the value itself. `first_element` is the index of the first element in the tensor. An element's
// result depends on the key, its index and its value alone. Finite values stay finite, at most
// 0x7f7f.
void EncodeBf16Randomly(const float* from, int64_t n, uint64_t key, uint64_t first_element,
                        uint16_t* to);

}  // namespace spillway::optim

#endif  // SPILLWAY_OPTIM_ELEMENT_CODECS_H_
