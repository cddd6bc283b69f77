// SPDX-License-Identifier: Apache-2.0
//
// The random bits of rounding, one element at a time. element_lanes-inl.h computes vectors of the
// same bits; FORMATS.md says which bits round what.

#ifndef SPILLWAY_OPTIM_RANDOM_WORDS_H_
#define SPILLWAY_OPTIM_RANDOM_WORDS_H_

#include <cstdint>

#include "src/simt/device_code.h"

namespace spillway::optim {

// Elements of a tensor that have one key.
inline constexpr uint64_t kKeyElements = 65536;
inline constexpr uint64_t kGolden = 0x9e3779b97f4a7c15u;

// The finaliser of SplitMix64 (Steele, Lea and Flood, 2014).
SPILLWAY_SIMT constexpr uint64_t Mixed(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Returns the key of a block of kKeyElements.
SPILLWAY_SIMT constexpr uint64_t KeyOfBlock(uint64_t key, uint64_t block) {
  return Mixed(key + block * kGolden);
}

// Returns the 32 random bits of an element of a tensor. The upper 16 round a value to bf16.
SPILLWAY_SIMT constexpr uint32_t RandomWord(uint64_t key, uint64_t element) {
  const uint64_t of_block = KeyOfBlock(key, element / kKeyElements);
  uint32_t x = static_cast<uint32_t>(element % kKeyElements) ^ static_cast<uint32_t>(of_block);
  x ^= x >> 16;
  x = (x * 0x7feb352du) ^ static_cast<uint32_t>(of_block >> 32);
  x ^= x >> 15;
  x *= 0x846ca68bu;
  return x ^ (x >> 16);
}

}  // namespace spillway::optim

#endif  // SPILLWAY_OPTIM_RANDOM_WORDS_H_
