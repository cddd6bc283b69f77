// SPDX-License-Identifier: Apache-2.0
//
// Converts 16-bit elements to and from vectors of float: IEEE half precision and bfloat16, rounded
// to nearest even on every instruction set, and bfloat16 rounded at random without bias. This file
// is included once for each Highway target, inside a file that foreach_target.h repeats.
//
// Highway 1.0.3 truncates where the machine has no conversion instruction. For those targets this
// file has integer arithmetic that gives the instruction's results.

#include <hwy/highway.h>

#include <cstdint>

#if defined(SPILLWAY_OPTIM_ELEMENT_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_OPTIM_ELEMENT_LANES_INL_H_
#undef SPILLWAY_OPTIM_ELEMENT_LANES_INL_H_
#else
#define SPILLWAY_OPTIM_ELEMENT_LANES_INL_H_
#endif

#undef SPILLWAY_NATIVE_HALF
// Targets whose float16_t conversions are instructions (F16C, or Arm's).
#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2) || (HWY_ARCH_ARM_A64 && HWY_TARGET <= HWY_NEON)
#define SPILLWAY_NATIVE_HALF 1
#else
#define SPILLWAY_NATIVE_HALF 0
#endif

HWY_BEFORE_NAMESPACE();
namespace spillway::optim::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;

#if SPILLWAY_NATIVE_HALF

template <class D>
HWY_INLINE hn::Vec<D> LoadHalf(D d, const uint16_t* from) {
  const hn::Rebind<hwy::float16_t, D> d16;
  return hn::PromoteTo(d, hn::LoadU(d16, reinterpret_cast<const hwy::float16_t*>(from)));
}

template <class D>
HWY_INLINE void StoreHalf(D, hn::Vec<D> value, uint16_t* to) {
  const hn::Rebind<hwy::float16_t, D> d16;
  hn::StoreU(hn::DemoteTo(d16, value), d16, reinterpret_cast<hwy::float16_t*>(to));
}

#else  // !SPILLWAY_NATIVE_HALF

// The exponent and fraction of a half, shifted up by 13 bits, are those of a float whose exponent
// is too small by 112.
template <class D>
HWY_INLINE hn::Vec<D> LoadHalf(D d, const uint16_t* from) {
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<uint16_t, D> d16;
  const auto bits = hn::PromoteTo(du, hn::LoadU(d16, from));
  const auto sign = hn::ShiftLeft<16>(hn::And(bits, hn::Set(du, 0x8000u)));
  const auto shifted = hn::ShiftLeft<13>(hn::And(bits, hn::Set(du, 0x7fffu)));
  const auto exponent = hn::And(shifted, hn::Set(du, 0x7c00u << 13));

  const auto normal = hn::Add(shifted, hn::Set(du, 112u << 23));
  // Infinity and NaN have the largest exponent; a NaN becomes quiet.
  const auto special = hn::Add(normal, hn::Set(du, 112u << 23));
  const auto is_nan = hn::Gt(shifted, hn::Set(du, 0x7c00u << 13));
  const auto quiet = hn::Or(special, hn::IfThenElseZero(is_nan, hn::Set(du, 1u << 22)));
  // A denormal is an integer multiple of 2^-24. A float with its fraction and the exponent of 2^-14
  // is the value plus 2^-14, which is then subtracted.
  const auto one = hn::Set(du, 113u << 23);
  const auto denormal =
      hn::BitCast(du, hn::Sub(hn::BitCast(d, hn::Or(shifted, one)), hn::BitCast(d, one)));

  auto result = hn::IfThenElse(hn::Eq(exponent, hn::Set(du, 0x7c00u << 13)), quiet, normal);
  result = hn::IfThenElse(hn::Eq(exponent, hn::Zero(du)), denormal, result);
  return hn::BitCast(d, hn::Or(result, sign));
}

template <class D>
HWY_INLINE void StoreHalf(D d, hn::Vec<D> value, uint16_t* to) {
  const hn::RebindToUnsigned<D> du;
  const hn::RebindToSigned<D> di;
  const hn::Rebind<uint16_t, D> d16;
  const auto bits = hn::BitCast(du, value);
  const auto sign = hn::And(bits, hn::Set(du, 0x80000000u));
  const auto magnitude = hn::Xor(bits, sign);

  // Normal halves: adds just under half of the last place, and one more if that place is odd. A
  // carry may reach infinity.
  const auto odd = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 1u));
  const auto bias = hn::Set(du, 0xfffu - (112u << 23));
  const auto normal = hn::ShiftRight<13>(hn::Add(hn::Add(magnitude, bias), odd));
  // Values below 2^-14: the addition rounds to a multiple of 2^-24.
  const auto half = hn::Set(du, 126u << 23);
  const auto denormal =
      hn::Sub(hn::BitCast(du, hn::Add(hn::BitCast(d, magnitude), hn::BitCast(d, half))), half);
  // Values from 65536 on become infinity. NaN keeps its upper bits and becomes quiet.
  const auto is_nan = hn::Gt(magnitude, hn::Set(du, 0x7f800000u));
  const auto payload = hn::And(hn::ShiftRight<13>(magnitude), hn::Set(du, 0x3ffu));
  const auto special = hn::Or(hn::Set(du, 0x7c00u),
                              hn::IfThenElseZero(is_nan, hn::Or(payload, hn::Set(du, 0x200u))));

  auto result = hn::IfThenElse(hn::Lt(magnitude, hn::Set(du, 113u << 23)), denormal, normal);
  result = hn::IfThenElse(hn::Lt(magnitude, hn::Set(du, 143u << 23)), result, special);
  result = hn::Or(result, hn::ShiftRight<16>(sign));
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, result)), d16, to);
}

#endif  // SPILLWAY_NATIVE_HALF

// A bfloat16 is the upper half of a float.
template <class D>
HWY_INLINE hn::Vec<D> LoadBf16(D d, const uint16_t* from) {
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<uint16_t, D> d16;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(d16, from))));
}

// Stores the upper halves of `rounded`, or of `bits` made quiet where `bits` are NaN.
template <class DU>
HWY_INLINE void StoreUpperHalves(DU du, hn::Vec<DU> bits, hn::Vec<DU> rounded, uint16_t* to) {
  const hn::Rebind<uint16_t, DU> d16;
  const hn::RebindToSigned<DU> di;
  const auto magnitude = hn::And(bits, hn::Set(du, 0x7fffffffu));
  const auto is_nan = hn::Gt(magnitude, hn::Set(du, 0x7f800000u));
  const auto kept = hn::IfThenElse(is_nan, hn::Or(bits, hn::Set(du, 0x00400000u)), rounded);
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, hn::ShiftRight<16>(kept))), d16, to);
}

// Stores values rounded to nearest even.
template <class D>
HWY_INLINE void StoreBf16(D, hn::Vec<D> value, uint16_t* to) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  StoreUpperHalves(du, bits, hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fffu))), to);
}

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
  StoreUpperHalves(du, bits, hn::Or(rounded, sign), to);
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
