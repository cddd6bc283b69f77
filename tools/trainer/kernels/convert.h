// SPDX-License-Identifier: Apache-2.0
//
// Between fp32 scratch and what engine tensors hold, one thread a call: conversion, rounding in
// place, the one-rounding add into a gradient, and sums of squares. Callers cut ranges between
// threads.

#ifndef SPILLWAY_TOOLS_TRAINER_KERNELS_CONVERT_H_
#define SPILLWAY_TOOLS_TRAINER_KERNELS_CONVERT_H_

#include <cstdint>

namespace spillway::trainer {

// fp16 is stored as uint16_t. To fp16: nearest, ties to even; overflow becomes infinity, NaN stays
// NaN.
void HalvesToFloats(const uint16_t* from, int64_t n, float* to);
void FloatsToHalves(const float* from, int64_t n, uint16_t* to);
void RoundToHalves(float* values, int64_t n);

// to[i] += from[i], computed in fp32 and rounded once.
void AddToFloats(const float* from, int64_t n, float* to);
void AddToHalves(const float* from, int64_t n, uint16_t* to);

// In fp64; infinity or NaN if any value is (a finite fp32 squared cannot overflow fp64).
double SumOfSquares(const float* values, int64_t n);
double SumOfSquares(const uint16_t* values, int64_t n);

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_KERNELS_CONVERT_H_
