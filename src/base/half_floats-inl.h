// SPDX-License-Identifier: Apache-2.0
//
// Converts vectors of float to and from 16-bit elements: IEEE 754 binary16 ("half") and bfloat16,
// rounded to nearest even, to the same bits as half_floats.h on every instruction set. This file is
// included once for each Highway target, inside a file that foreach_target.h repeats.
//
// Highway 1.0.3 truncates where the machine has no conversion of halves. For those targets this
// file has integer arithmetic that gives the instruction's results. bfloat16 is converted by
// integer arithmetic on every target: the instructions of AVX512-BF16 treat subnormals as zero.

#include <hwy/highway.h>

#include <cstdint>

#if defined(SPILLWAY_BASE_HALF_FLOATS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SPILLWAY_BASE_HALF_FLOATS_INL_H_
#undef SPILLWAY_BASE_HALF_FLOATS_INL_H_
#else
#define SPILLWAY_BASE_HALF_FLOATS_INL_H_
#endif

#undef SPILLWAY_NATIVE_HALF
// Targets whose float16_t conversions are instructions (F16C, or Arm's).
#if (HWY_ARCH_X86 && HWY_TARGET <= HWY_AVX2) || (HWY_ARCH_ARM_A64 && HWY_TARGET <= HWY_NEON)
#define SPILLWAY_NATIVE_HALF 1
#else
#define SPILLWAY_NATIVE_HALF 0
#endif

HWY_BEFORE_NAMESPACE();
namespace spillway::base::HWY_NAMESPACE {
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

// Returns, as floats, the values nearest `value` that a half can hold.
template <class D>
HWY_INLINE hn::Vec<D> RoundToHalf(D d, hn::Vec<D> value) {
  return hn::PromoteTo(d, hn::DemoteTo(hn::Rebind<hwy::float16_t, D>(), value));
}

#else  // !SPILLWAY_NATIVE_HALF

// Converts the lower 16 bits of each lane. The exponent and fraction of a half, shifted up by 13
// bits, are those of a float whose exponent is too small by 112.
template <class D>
HWY_INLINE hn::Vec<D> FloatsOfHalves(D d, hn::Vec<hn::RebindToUnsigned<D>> bits) {
  const hn::RebindToUnsigned<D> du;
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

// Returns the halves in the lower 16 bits of each lane.
template <class D>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> HalvesOfFloats(D d, hn::Vec<D> value) {
  const hn::RebindToUnsigned<D> du;
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
  return hn::Or(result, hn::ShiftRight<16>(sign));
}

template <class D>
HWY_INLINE hn::Vec<D> LoadHalf(D d, const uint16_t* from) {
  const hn::RebindToUnsigned<D> du;
  return FloatsOfHalves(d, hn::PromoteTo(du, hn::LoadU(hn::Rebind<uint16_t, D>(), from)));
}

template <class D>
HWY_INLINE void StoreHalf(D d, hn::Vec<D> value, uint16_t* to) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::RebindToSigned<D> di;
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, HalvesOfFloats(d, value))), d16, to);
}

template <class D>
HWY_INLINE hn::Vec<D> RoundToHalf(D d, hn::Vec<D> value) {
  return FloatsOfHalves(d, HalvesOfFloats(d, value));
}

#endif  // SPILLWAY_NATIVE_HALF

// A bfloat16 is the upper half of a float.
template <class D>
HWY_INLINE hn::Vec<D> LoadBf16(D d, const uint16_t* from) {
  const hn::RebindToUnsigned<D> du;
  const hn::Rebind<uint16_t, D> d16;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(du, hn::LoadU(d16, from))));
}

// Returns `rounded`, or `bits` made quiet where `bits` are NaN.
template <class DU>
HWY_INLINE hn::Vec<DU> KeepNaN(DU du, hn::Vec<DU> bits, hn::Vec<DU> rounded) {
  const auto magnitude = hn::And(bits, hn::Set(du, 0x7fffffffu));
  const auto is_nan = hn::Gt(magnitude, hn::Set(du, 0x7f800000u));
  return hn::IfThenElse(is_nan, hn::Or(bits, hn::Set(du, 0x00400000u)), rounded);
}

template <class DU>
HWY_INLINE void StoreUpperHalves(DU, hn::Vec<DU> bits, uint16_t* to) {
  const hn::Rebind<uint16_t, DU> d16;
  const hn::RebindToSigned<DU> di;
  hn::StoreU(hn::DemoteTo(d16, hn::BitCast(di, hn::ShiftRight<16>(bits))), d16, to);
}

// Returns the nearest bfloat16 in the upper half of each lane. The lower half holds leftover bits.
template <class D>
HWY_INLINE hn::Vec<hn::RebindToUnsigned<D>> NearestBf16(D, hn::Vec<D> value) {
  const hn::RebindToUnsigned<D> du;
  const auto bits = hn::BitCast(du, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(du, 1u));
  return KeepNaN(du, bits, hn::Add(bits, hn::Add(odd, hn::Set(du, 0x7fffu))));
}

template <class D>
HWY_INLINE void StoreBf16(D d, hn::Vec<D> value, uint16_t* to) {
  StoreUpperHalves(hn::RebindToUnsigned<D>(), NearestBf16(d, value), to);
}

// Returns, as floats, the values nearest `value` that a bfloat16 can hold.
template <class D>
HWY_INLINE hn::Vec<D> RoundToBf16(D d, hn::Vec<D> value) {
  const hn::RebindToUnsigned<D> du;
  return hn::BitCast(d, hn::And(NearestBf16(d, value), hn::Set(du, 0xffff0000u)));
}

}  // namespace
}  // namespace spillway::base::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
