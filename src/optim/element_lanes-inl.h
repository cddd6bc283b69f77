// SPDX-License-Identifier: Apache-2.0
//
// Rounds vectors of float to bfloat16 at random without bias, and makes the random bits for that.
// This file is included once for each Highway target, inside a file that foreach_target.h repeats.

#include <hwy/highway.h>

#include <cstdint>

#include "src/base/half_floats-inl.h"

#if defined(SPILLWAY_OPTIM_ELEMENT_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_OPTIM_ELEMENT_LANES_INL_H_
#undef SPILLWAY_OPTIM_ELEMENT_LANES_INL_H_
#else
#define SPILLWAY_OPTIM_ELEMENT_LANES_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace spillway::optim::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
namespace lanes = base::HWY_NAMESPACE;

// Stores values rounded at random: away from zero with the probability of the part that is cut off,
// else towards zero. `random` has 16 bits in each lane. A finite value never becomes infinite.
template <class D>
HWY_INLINE void StoreBf16Randomly(D, hn::Vec<D> value, hn::Vec<hn::RebindToUnsigned<D>> random,
                                  uint16_t* to) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, value);
  const auto sign = hn::And(bits, hn::Set(du, 0x80000000u));
  const auto magnitude = hn::Xor(bits, sign);
  const auto infinity = hn::Set(du, 0x7f800000u);
  const auto finite = hn::Min(hn::Add(magnitude, random), hn::Set(du, 0x7f7fffffu));
  const auto rounded = hn::IfThenElse(hn::Lt(magnitude, infinity), finite, magnitude);
  lanes::StoreUpperHalves(du, lanes::KeepNaN(du, bits, hn::Or(rounded, sign)), to);
}

// Hashes the indices of elements, which count from `first` in a block of 65536: two rounds of
// multiplying and folding (after Wellons' lowbias32), with half of the block's key before each. The
// upper 16 bits of a lane are random.
template <class DU>
HWY_INLINE hn::Vec<DU> RandomProduct(DU du, uint32_t first, uint32_t key1, uint32_t key2) {
  // Iota counts from a constant, because Highway 1.0.3 computes any other start one element at a
  // time.
  auto x = hn::Xor(hn::Add(hn::Iota(du, 0), hn::Set(du, first)), hn::Set(du, key1));
  x = hn::Xor(x, hn::ShiftRight<16>(x));
  x = hn::Xor(hn::Mul(x, hn::Set(du, 0x7feb352du)), hn::Set(du, key2));
  x = hn::Xor(x, hn::ShiftRight<15>(x));
  return hn::Mul(x, hn::Set(du, 0x846ca68bu));
}

// Returns 16 random bits in each lane.
template <class DU>
HWY_INLINE hn::Vec<DU> RandomBits(DU du, uint32_t first, uint32_t key1, uint32_t key2) {
  return hn::ShiftRight<16>(RandomProduct(du, first, key1, key2));
}

// Returns 32 random bits in each lane. The upper 16 are those of RandomBits.
template <class DU>
HWY_INLINE hn::Vec<DU> RandomWords(DU du, uint32_t first, uint32_t key1, uint32_t key2) {
  const auto x = RandomProduct(du, first, key1, key2);
  return hn::Xor(x, hn::ShiftRight<16>(x));
}

}  // namespace
}  // namespace spillway::optim::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
