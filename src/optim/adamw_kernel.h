// SPDX-License-Identifier: Apache-2.0
//
// The AdamW update of a run of elements as a kernel (src/simt/block.h), in each state format. It
// computes what UpdateFused computes, with the same bits: each operation is rounded once, in the
// same order. Of an element that is NaN, only that it is NaN is the same.
//
// A thread takes an element. A block takes up to kBlockOfThreads elements of a row, so each scale
// of 8-bit and compact state is of one block's elements. How moments and master weights rest is a
// parameter of the kernel:
//
//   AdamW<SeparateState<false>>   fp32 moments, and a master weight
//   AdamW<SeparateState<true>>    bf16 moments, rounded at random, and a master weight
//   AdamW<BlockState>             8-bit moments, and a master weight
//   AdamW<CompactState>           8-bit moments; the master weight is the weight with a residual
//
// The formats themselves are in FORMATS.md and, with their reasons, in the codecs' headers.

#ifndef SPILLWAY_OPTIM_ADAMW_KERNEL_H_
#define SPILLWAY_OPTIM_ADAMW_KERNEL_H_

#include <cmath>
#include <cstdint>
#include <cstring>

#include "src/optim/code_levels.h"
#include "src/optim/compact_elements.h"
#include "src/optim/random_words.h"
#include "src/simt/block.h"
#include "src/simt/device_code.h"
#include "src/simt/elements.h"

namespace spillway::optim {

inline constexpr int kBlockOfThreads = 256;

// Those of RuleFactors that the rule uses.
struct AdamWFactors {
  float gradient_scale, decay, beta1, one_minus_beta1, beta2, one_minus_beta2, step_size,
      bias2_root, epsilon;
};

// Which element a thread has.
struct ElementPlace {
  int64_t row, column;
  int64_t index;     // in the run
  uint64_t element;  // in the tensor

  SPILLWAY_SIMT uint32_t Random(uint64_t key) const { return RandomWord(key, element); }
};

// Returns the bits of a magnitude. They are in the order of magnitudes, NaN last.
SPILLWAY_SIMT inline uint32_t MagnitudeBits(float value) {
  return simt::BitsOf(value) & 0x7fffffffu;
}

// A 16- or 32-bit number at any address.
template <class T>
SPILLWAY_SIMT T LoadAnywhere(const uint8_t* from) {
  T value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}
template <class T>
SPILLWAY_SIMT void StoreAnywhere(T value, uint8_t* to) {
  std::memcpy(to, &value, sizeof(value));
}

// --- How state rests ---

// The weight and its master, of formats with both.
struct SeparateMaster {
  float* master;
  void* weight;  // the master, rounded to nearest even; null: there is none
  simt::Element weight_type;

  SPILLWAY_SIMT float ReadMaster(const ElementPlace& at) const { return master[at.index]; }
  SPILLWAY_SIMT void WriteMaster(const ElementPlace& at, float value) const {
    master[at.index] = value;
    if (weight != nullptr) simt::Store(weight_type, value, weight, at.index);
  }
};

// A moment is a tensor.
template <bool kRandomBf16>
struct SeparateState : SeparateMaster {
  static constexpr int kGroup = 1;  // elements that share a scale

  void* moments[2];
  uint64_t keys[2];  // of random rounding

  SPILLWAY_SIMT float Read(int moment, const ElementPlace& at) const {
    return simt::Load(kRandomBf16 ? simt::Element::kBF16 : simt::Element::kF32, moments[moment],
                      at.index);
  }
  SPILLWAY_SIMT void Write(int moment, const ElementPlace& at, float value,
                           uint32_t /*largest*/) const {
    if constexpr (!kRandomBf16) {
      static_cast<float*>(moments[moment])[at.index] = value;
    } else {
      static_cast<uint16_t*>(moments[moment])[at.index] =
          Bf16AtRandom(value, at.Random(keys[moment]) >> 16);
    }
  }
};

// The moments of a row are a row of bytes: EncodedRow in state_format.h.
struct EncodedRows {
  uint8_t* rows;
  int64_t row_bytes;
  int64_t scales[2], codes[2];  // where those of a moment begin in a row

  SPILLWAY_SIMT uint8_t* Scale(int moment, const ElementPlace& at, int group, int bytes) const {
    return rows + at.row * row_bytes + scales[moment] + at.column / group * bytes;
  }
  SPILLWAY_SIMT uint8_t* Code(int moment, const ElementPlace& at) const {
    return rows + at.row * row_bytes + codes[moment] + at.column;
  }
};

// Moments as 8-bit codes of blocks of 256 elements (block_codec.h).
struct BlockState : SeparateMaster {
  static constexpr int kGroup = 256;

  EncodedRows state;
  const float* values[2];  // CodeValues of each moment's map
  CodeLevels levels[2];    // LevelsOfCodes

  SPILLWAY_SIMT float Read(int moment, const ElementPlace& at) const {
    const auto scale = LoadAnywhere<float>(state.Scale(moment, at, kGroup, sizeof(float)));
    return scale * values[moment][*state.Code(moment, at)];
  }
  SPILLWAY_SIMT void Write(int moment, const ElementPlace& at, float value,
                           uint32_t largest) const {
    const float scale = simt::FloatOf(largest);
    if (at.column % kGroup == 0)
      StoreAnywhere(scale, state.Scale(moment, at, kGroup, sizeof(float)));
    *state.Code(moment, at) = CodeOf(levels[moment], value, scale == 0 ? 1.0f : scale);
  }

 private:
  // REQUIRES: the divisor is not zero.
  SPILLWAY_SIMT static uint8_t CodeOf(const CodeLevels& map, float value, float divisor) {
    const float magnitude = simt::FloatOf(MagnitudeBits(value));
    const float ratio = magnitude / divisor;
    const float x = ratio <= 1.0f ? ratio : 1.0f;
    CodeLevels::Decade decade = map.decades[0];
    for (int i = 1; i < CodeLevels::kDecades; ++i) {
      if (x >= map.decades[i].from) decade = map.decades[i];
    }
    float level = x * decade.slope + decade.offset;
    level = level < decade.last ? level : decade.last;
    if (x >= map.one_from) level = map.one_level;
    level = level > map.least_level ? level : map.least_level;
    if (x < map.decades[0].from && magnitude <= map.most_zero) level = 0;
    const int whole = static_cast<int>(level);
    const int below = map.zero_code - (whole < map.zero_code ? whole : map.zero_code);
    return static_cast<uint8_t>(simt::BitsOf(value) >> 31 != 0 ? below : map.zero_code + whole);
  }
};

// Moments as 8-bit codes of groups of 64 elements (group_codec.h), the first signed and the second
// not, and a split master weight (split_master.h).
struct CompactState {
  static constexpr int kGroup = 64;

  EncodedRows state;
  int64_t residuals;  // where they begin in a row
  void* weight;       // fp16 or bf16
  simt::Element weight_type;
  uint64_t keys[2];  // of the moments' rounding
  uint64_t residual_key;

  SPILLWAY_SIMT float ReadMaster(const ElementPlace& at) const {
    const uint16_t bits = static_cast<const uint16_t*>(weight)[at.index];
    return JoinMaster(weight_type == simt::Element::kF16, bits, *Residual(at));
  }
  SPILLWAY_SIMT void WriteMaster(const ElementPlace& at, float value) const {
    const SplitWeight split =
        SplitMaster(weight_type == simt::Element::kF16, value, at.Random(residual_key));
    static_cast<uint16_t*>(weight)[at.index] = split.weight;
    *Residual(at) = split.residual;
  }

  SPILLWAY_SIMT float Read(int moment, const ElementPlace& at) const {
    const auto scale = LoadAnywhere<uint16_t>(state.Scale(moment, at, kGroup, sizeof(uint16_t)));
    return DecodeCompact(/*is_signed=*/moment == 0, scale, *state.Code(moment, at));
  }
  SPILLWAY_SIMT void Write(int moment, const ElementPlace& at, float value,
                           uint32_t largest) const {
    const uint16_t scale = CompactScale(largest);
    if (at.column % kGroup == 0)
      StoreAnywhere(scale, state.Scale(moment, at, kGroup, sizeof(uint16_t)));
    *state.Code(moment, at) =
        EncodeCompact(/*is_signed=*/moment == 0, value, scale, at.Random(keys[moment]));
  }

 private:
  SPILLWAY_SIMT uint8_t* Residual(const ElementPlace& at) const {
    return state.rows + at.row * state.row_bytes + residuals + at.column;
  }
};

// --- The largest of a group ---

template <class Block, int kGroup>
struct GroupLargest {
  static constexpr int kParts = kGroup == 256 ? 16 : 8;
  static constexpr int kGroups = kBlockOfThreads / kGroup;
  typename Block::template Array<uint32_t, kBlockOfThreads> values;
  typename Block::template Array<uint32_t, kParts * kGroups> parts;
};
template <class Block>
struct GroupLargest<Block, 1> {};

// Returns the largest of the numbers of each kGroup threads to these threads. It may be called
// again at once, as simt::Reduce.
template <class Block, int kGroup>
SPILLWAY_SIMT uint32_t LargestOfGroup(Block& block, GroupLargest<Block, kGroup>& shared,
                                      uint32_t value) {
  constexpr int kParts = GroupLargest<Block, kGroup>::kParts;
  const int group = block.thread() / kGroup, member = block.thread() % kGroup;
  shared.values.Write(block.thread(), value);
  block.Sync();
  if (member < kParts) {
    uint32_t largest = 0;
    for (int i = member; i < kGroup; i += kParts) {
      const uint32_t other = shared.values.Read(group * kGroup + i);
      largest = largest < other ? other : largest;
    }
    shared.parts.Write(group * kParts + member, largest);
  }
  block.Sync();
  uint32_t largest = 0;
  for (int i = 0; i < kParts; ++i) {
    const uint32_t other = shared.parts.Read(group * kParts + i);
    largest = largest < other ? other : largest;
  }
  return largest;
}

// --- The update ---

// Updates rows of `width` elements, which are contiguous. Elements that rest on their own may be
// given as one row.
template <class State>
struct AdamW {
  static constexpr int kThreads = kBlockOfThreads;
  template <class Block>
  using Shared = GroupLargest<Block, State::kGroup>;

  AdamWFactors factors;
  int64_t rows, width;
  uint64_t first_element;  // in the tensor
  const void* gradient;
  simt::Element gradient_type;
  State state;

  int64_t blocks() const { return rows * simt::BlocksOf(width, kThreads); }

  template <class Block>
  SPILLWAY_SIMT void Run(Block& block, Shared<Block>& shared) const {
    const int64_t blocks_of_row = simt::BlocksOf(width, kThreads);
    ElementPlace at;
    at.row = block.index() / blocks_of_row;
    at.column = block.index() % blocks_of_row * kThreads + block.thread();
    at.index = at.row * width + at.column;
    at.element = first_element + static_cast<uint64_t>(at.index);
    const bool is_inside = at.column < width;
    float moments[2] = {0, 0};
    if (is_inside) Update(at, moments);
    uint32_t largest[2] = {0, 0};
    if constexpr (State::kGroup > 1) {
      for (int i = 0; i < 2; ++i)
        largest[i] = LargestOfGroup<Block, State::kGroup>(block, shared, MagnitudeBits(moments[i]));
    }
    if (!is_inside) return;
    for (int i = 0; i < 2; ++i) state.Write(i, at, moments[i], largest[i]);
  }

 private:
  // The operations of Adam in rule_kernels.cc, in their order.
  SPILLWAY_SIMT void Update(const ElementPlace& at, float* moments) const {
    const AdamWFactors& f = factors;
    const float g = f.gradient_scale * simt::Load(gradient_type, gradient, at.index);
    const float m = f.beta1 * state.Read(0, at) + f.one_minus_beta1 * g;
    const float v = f.beta2 * state.Read(1, at) + f.one_minus_beta2 * (g * g);
    const float denominator = std::sqrt(v) / f.bias2_root + f.epsilon;
    const float decayed = f.decay * state.ReadMaster(at);
    state.WriteMaster(at, decayed - f.step_size * (m / denominator));
    moments[0] = m;
    moments[1] = v;
  }
};

}  // namespace spillway::optim

#endif  // SPILLWAY_OPTIM_ADAMW_KERNEL_H_
