// SPDX-License-Identifier: Apache-2.0
//
// One bit for each tile. The bits of a million tiles are copied, compared and cleared in
// microseconds.

#ifndef SPILLWAY_PLAN_TILE_BITS_H_
#define SPILLWAY_PLAN_TILE_BITS_H_

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace spillway::plan {

using TileIndex = uint32_t;  // of one trace, dense from zero

// Bits that were never set are zero.
class TileBits {
 public:
  bool operator[](TileIndex tile) const {
    return tile / kWord < words_.size() && (words_[tile / kWord] >> tile % kWord & 1) != 0;
  }
  void Set(TileIndex tile, bool value = true) {
    if (tile / kWord >= words_.size()) words_.resize(tile / kWord + 1);
    const uint64_t bit = uint64_t{1} << tile % kWord;
    any_ |= value;
    if (value) {
      words_[tile / kWord] |= bit;
    } else {
      words_[tile / kWord] &= ~bit;
    }
  }
  void Clear() {
    if (any_) std::ranges::fill(words_, 0);
    any_ = false;
  }
  // The first tile from `from` on whose bit is set.
  std::optional<TileIndex> Next(TileIndex from) const {
    const size_t first = from / kWord;
    for (size_t i = first; i < words_.size(); ++i) {
      const uint64_t word = i == first ? words_[i] & (~uint64_t{0} << from % kWord) : words_[i];
      if (word != 0) return static_cast<TileIndex>(i * kWord) + std::countr_zero(word);
    }
    return std::nullopt;
  }
  // Whether `x` and `y` differ in one of `tiles`.
  static bool Differ(const TileBits& x, const TileBits& y, const TileBits& tiles) {
    const size_t size = std::max(x.words_.size(), y.words_.size());
    for (size_t i = 0; i < size; ++i) {
      if (((x.Word(i) ^ y.Word(i)) & tiles.Word(i)) != 0) return true;
    }
    return false;
  }

 private:
  static constexpr TileIndex kWord = 64;
  uint64_t Word(size_t i) const { return i < words_.size() ? words_[i] : 0; }

  std::vector<uint64_t> words_;
  bool any_ = false;  // if false, no bit is set
};

}  // namespace spillway::plan

#endif  // SPILLWAY_PLAN_TILE_BITS_H_
