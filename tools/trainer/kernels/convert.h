// SPDX-License-Identifier: Apache-2.0
//
// Operations between fp32 scratch and the elements of engine tensors: conversion, rounding in
// place, addition to a gradient with one rounding, and sums of squares. The element type is an
// argument: fp32, fp16 or bf16. Each call runs on the calling thread; callers divide ranges between
// threads.

#ifndef SPILLWAY_TOOLS_TRAINER_KERNELS_CONVERT_H_
#define SPILLWAY_TOOLS_TRAINER_KERNELS_CONVERT_H_

#include <cstddef>
#include <cstdint>

#include "spillway/types.h"

namespace spillway::trainer {

// Convert n elements. Conversion to 16 bits rounds to nearest, ties to even; overflow becomes
// infinity, NaN stays NaN. fp32 is copied.
// REQUIRES, for all functions that take a type: it is kF32, kF16 or kBF16.
void ToFloats(DType type, const void* from, int64_t n, float* to);
void FromFloats(DType type, const float* from, int64_t n, void* to);
// Rounds each value to what an element of the type would hold.
void RoundTo(DType type, float* values, int64_t n);

// Computes to[i] += from[i] in fp32 and rounds once.
void AddTo(DType type, const float* from, int64_t n, void* to);
inline void AddToFloats(const float* from, int64_t n, float* to) {
  AddTo(DType::kF32, from, n, to);
}

// Sums in fp64. The sum is infinity or NaN if any value is; the square of a finite fp32 cannot
// overflow fp64.
double SumOfSquares(DType type, const void* values, int64_t n);

// Returns the address of an element.
inline const std::byte* ElementAt(DType type, const std::byte* tensor, int64_t index) {
  return tensor + static_cast<uint64_t>(index) * ElementBytes(type);
}
inline std::byte* ElementAt(DType type, std::byte* tensor, int64_t index) {
  return tensor + static_cast<uint64_t>(index) * ElementBytes(type);
}

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_KERNELS_CONVERT_H_
