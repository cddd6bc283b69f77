// SPDX-License-Identifier: Apache-2.0
//
// Between fp32 scratch and what engine tensors hold, one thread a call: conversion, rounding in
// place, the one-rounding add into a gradient, and sums of squares. The element type is an
// argument: fp32, fp16 or bf16. Callers cut ranges between threads.

#ifndef SPILLWAY_TOOLS_TRAINER_KERNELS_CONVERT_H_
#define SPILLWAY_TOOLS_TRAINER_KERNELS_CONVERT_H_

#include <cstddef>
#include <cstdint>

#include "spillway/types.h"

namespace spillway::trainer {

// To 16 bits: nearest, ties to even; overflow becomes infinity, NaN stays NaN. fp32 is copied.
// REQUIRES of all that take a type: it is kF32, kF16 or kBF16.
void ToFloats(DType type, const void* from, int64_t n, float* to);
void FromFloats(DType type, const float* from, int64_t n, void* to);
// To what an element of the type would hold.
void RoundTo(DType type, float* values, int64_t n);

// to[i] += from[i], computed in fp32 and rounded once.
void AddTo(DType type, const float* from, int64_t n, void* to);
inline void AddToFloats(const float* from, int64_t n, float* to) {
  AddTo(DType::kF32, from, n, to);
}

// In fp64; infinity or NaN if any value is (a finite fp32 squared cannot overflow fp64).
double SumOfSquares(DType type, const void* values, int64_t n);

// The address of an element.
inline const std::byte* ElementAt(DType type, const std::byte* tensor, int64_t index) {
  return tensor + static_cast<uint64_t>(index) * ElementBytes(type);
}
inline std::byte* ElementAt(DType type, std::byte* tensor, int64_t index) {
  return tensor + static_cast<uint64_t>(index) * ElementBytes(type);
}

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_KERNELS_CONVERT_H_
