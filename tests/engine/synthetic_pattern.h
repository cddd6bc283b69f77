// SPDX-License-Identifier: Apache-2.0
//
// The bytes that the synthetic trainer writes. They follow from a seed and their position, and are
// the same on the CPU and in a GPU's kernel.

#ifndef SPILLWAY_TESTS_ENGINE_SYNTHETIC_PATTERN_H_
#define SPILLWAY_TESTS_ENGINE_SYNTHETIC_PATTERN_H_

#include <cstdint>

#ifdef __CUDACC__
#define SPILLWAY_ON_BOTH __host__ __device__
#else
#define SPILLWAY_ON_BOTH
#endif

namespace spillway::test {

// Returns eight bytes, the first in the lowest bits. Seed 0 gives zeros, as in a tile that was
// never written.
SPILLWAY_ON_BOTH constexpr uint64_t PatternWord(uint64_t seed, uint64_t word) {
  if (seed == 0) return 0;
  uint64_t mixed = seed + word * 0x9e3779b97f4a7c15u;  // splitmix64
  mixed = (mixed ^ (mixed >> 30)) * 0xbf58476d1ce4e5b9u;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111ebu;
  return mixed ^ (mixed >> 31);
}

// Returns byte `at` of a tile.
SPILLWAY_ON_BOTH constexpr uint8_t PatternByte(uint64_t seed, uint64_t at) {
  return static_cast<uint8_t>(PatternWord(seed, at / 8) >> (at % 8 * 8));
}

// The work of a kernel on a tile. If `check` is set, it compares every byte with the pattern of
// `expected`. If `write` is set, it then writes the pattern of `next`.
struct TileWork {
  uint8_t* data = nullptr;
  uint64_t size_bytes = 0;
  bool check = false;
  bool write = false;
  uint64_t expected = 0;
  uint64_t next = 0;
  uint32_t microseconds = 0;  // time to compute before that
};

}  // namespace spillway::test

#endif  // SPILLWAY_TESTS_ENGINE_SYNTHETIC_PATTERN_H_
