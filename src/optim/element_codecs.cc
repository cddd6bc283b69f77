// SPDX-License-Identifier: Apache-2.0
//
// Conversions of 16-bit elements, compiled once for each instruction set by Highway. The elements
// at the end of a run that do not fill a vector go through the same vector code in small buffers.

#include "src/optim/element_codecs.h"

#include <hwy/cache_control.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "src/optim/element_codecs.cc"
#include <hwy/foreach_target.h>  // must come before highway.h
#include <hwy/highway.h>

#include "src/optim/element_lanes-inl.h"
#include "src/optim/random_words.h"

HWY_BEFORE_NAMESPACE();
namespace spillway::optim::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::ScalableTag<float>;

// Calls convert(from, to, i) for each vector; `i` is the index of its first element.
template <typename From, typename To, class Convert>
HWY_INLINE void ForEachVector(const From* from, size_t n, To* to, const Convert& convert) {
  const size_t lanes = hn::Lanes(Floats());
  size_t i = 0;
  for (; i + lanes <= n; i += lanes) convert(from + i, to + i, i);
  if (i == n) return;
  constexpr size_t kLanes = hn::MaxLanes(Floats());
  From from_tail[kLanes] = {};
  To to_tail[kLanes];
  std::memcpy(from_tail, from + i, (n - i) * sizeof(From));
  convert(from_tail, to_tail, i);
  std::memcpy(to + i, to_tail, (n - i) * sizeof(To));
}

}  // namespace

void DecodeHalfOnTarget(const uint16_t* from, size_t n, float* to) {
  ForEachVector(from, n, to, [](const uint16_t* halves, float* floats, size_t) {
    hn::StoreU(lanes::LoadHalf(Floats(), halves), Floats(), floats);
  });
}

void EncodeHalfOnTarget(const float* from, size_t n, uint16_t* to) {
  ForEachVector(from, n, to, [](const float* floats, uint16_t* halves, size_t) {
    lanes::StoreHalf(Floats(), hn::LoadU(Floats(), floats), halves);
  });
}

void DecodeBf16OnTarget(const uint16_t* from, size_t n, float* to) {
  ForEachVector(from, n, to, [](const uint16_t* halves, float* floats, size_t) {
    hn::StoreU(lanes::LoadBf16(Floats(), halves), Floats(), floats);
  });
}

void EncodeBf16OnTarget(const float* from, size_t n, uint16_t* to) {
  ForEachVector(from, n, to, [](const float* floats, uint16_t* halves, size_t) {
    lanes::StoreBf16(Floats(), hn::LoadU(Floats(), floats), halves);
  });
}

void EncodeBf16RandomlyOnTarget(const float* from, size_t n, uint64_t key, uint32_t first,
                                uint16_t* to) {
  const auto key1 = static_cast<uint32_t>(key);
  const auto key2 = static_cast<uint32_t>(key >> 32);
  ForEachVector(from, n, to, [=](const float* floats, uint16_t* halves, size_t i) {
    const hn::RebindToUnsigned<Floats> du;
    const auto random = RandomBits(du, first + static_cast<uint32_t>(i), key1, key2);
    StoreBf16Randomly(Floats(), hn::LoadU(Floats(), floats), random, halves);
  });
}

void FillRandomWordsOnTarget(uint64_t key, uint32_t first, size_t n, uint32_t* to) {
  const hn::RebindToUnsigned<Floats> du;
  const auto key1 = static_cast<uint32_t>(key);
  const auto key2 = static_cast<uint32_t>(key >> 32);
  const size_t lanes = hn::Lanes(du);
  size_t i = 0;
  for (; i + lanes <= n; i += lanes)
    hn::StoreU(RandomWords(du, first + static_cast<uint32_t>(i), key1, key2), du, to + i);
  if (i == n) return;
  uint32_t tail[hn::MaxLanes(Floats())];
  hn::StoreU(RandomWords(du, first + static_cast<uint32_t>(i), key1, key2), du, tail);
  std::memcpy(to + i, tail, (n - i) * sizeof(uint32_t));
}

void CopyStreamedOnTarget(const uint8_t* from, size_t size_bytes, uint8_t* to) {
  const hn::ScalableTag<uint8_t> d;
  const size_t lanes = hn::Lanes(d);
  size_t i = 0;
  if (reinterpret_cast<uintptr_t>(to) % lanes == 0) {
    for (; i + lanes <= size_bytes; i += lanes) hn::Stream(hn::LoadU(d, from + i), d, to + i);
  }
  std::memcpy(to + i, from + i, size_bytes - i);
}

}  // namespace spillway::optim::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace spillway::optim {
namespace {

HWY_EXPORT(DecodeHalfOnTarget);
HWY_EXPORT(EncodeHalfOnTarget);
HWY_EXPORT(DecodeBf16OnTarget);
HWY_EXPORT(EncodeBf16OnTarget);
HWY_EXPORT(EncodeBf16RandomlyOnTarget);
HWY_EXPORT(FillRandomWordsOnTarget);
HWY_EXPORT(CopyStreamedOnTarget);

void DecodeFloat(const void* from, int64_t n, float* to) {
  std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
}
void EncodeFloat(const float* from, int64_t n, void* to) {
  std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
}
void DecodeHalf(const void* from, int64_t n, float* to) {
  HWY_DYNAMIC_DISPATCH(DecodeHalfOnTarget)
  (static_cast<const uint16_t*>(from), static_cast<size_t>(n), to);
}
void EncodeHalf(const float* from, int64_t n, void* to) {
  HWY_DYNAMIC_DISPATCH(EncodeHalfOnTarget)
  (from, static_cast<size_t>(n), static_cast<uint16_t*>(to));
}
void DecodeBf16(const void* from, int64_t n, float* to) {
  HWY_DYNAMIC_DISPATCH(DecodeBf16OnTarget)
  (static_cast<const uint16_t*>(from), static_cast<size_t>(n), to);
}
void EncodeBf16(const float* from, int64_t n, void* to) {
  HWY_DYNAMIC_DISPATCH(EncodeBf16OnTarget)
  (from, static_cast<size_t>(n), static_cast<uint16_t*>(to));
}

// Calls visit(block's key, first element in the block, elements before, elements) for each block's
// part of a run. Each block has its own key.
template <class Visit>
void ForEachBlock(uint64_t key, uint64_t first_element, int64_t n, const Visit& visit) {
  const auto count = static_cast<uint64_t>(n);
  for (uint64_t done = 0; done < count;) {
    const uint64_t block = (first_element + done) / kKeyElements;
    const uint64_t first = (first_element + done) % kKeyElements;
    const uint64_t piece = std::min(count - done, kKeyElements - first);
    visit(KeyOfBlock(key, block), static_cast<uint32_t>(first), done, piece);
    done += piece;
  }
}

}  // namespace

const ElementCodec& CodecOf(DType dtype) {
  static constexpr std::array<ElementCodec, 3> kCodecs = {
      ElementCodec{4, DecodeFloat, EncodeFloat},  // kF32
      ElementCodec{2, DecodeHalf, EncodeHalf},    // kF16
      ElementCodec{2, DecodeBf16, EncodeBf16},    // kBF16
  };
  return kCodecs.at(static_cast<size_t>(dtype));
}

void CopyStreamed(const void* from, int64_t size_bytes, void* to) {
  HWY_DYNAMIC_DISPATCH(CopyStreamedOnTarget)
  (static_cast<const uint8_t*>(from), static_cast<size_t>(size_bytes), static_cast<uint8_t*>(to));
}

void FlushStreamed() { hwy::FlushStream(); }

// FNV-1a of the name, mixed with the step.
uint64_t RoundingKey(std::string_view tensor, int64_t step) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : tensor) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return Mixed(Mixed(hash + kGolden) + static_cast<uint64_t>(step) * kGolden);
}

void EncodeBf16Randomly(const float* from, int64_t n, uint64_t key, uint64_t first_element,
                        uint16_t* to) {
  ForEachBlock(key, first_element, n,
               [&](uint64_t block_key, uint32_t first, uint64_t done, uint64_t count) {
                 HWY_DYNAMIC_DISPATCH(EncodeBf16RandomlyOnTarget)
                 (from + done, count, block_key, first, to + done);
               });
}

void FillRandomWords(uint64_t key, uint64_t first_element, int64_t n, uint32_t* words) {
  ForEachBlock(key, first_element, n,
               [&](uint64_t block_key, uint32_t first, uint64_t done, uint64_t count) {
                 HWY_DYNAMIC_DISPATCH(FillRandomWordsOnTarget)
                 (block_key, first, count, words + done);
               });
}

}  // namespace spillway::optim
#endif  // HWY_ONCE
