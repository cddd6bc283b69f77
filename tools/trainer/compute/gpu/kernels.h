// SPDX-License-Identifier: Apache-2.0
//
// The trainer's kernels, as a list: a build with CUDA compiles each of them for a GPU.

#ifndef SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_KERNELS_H_
#define SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_KERNELS_H_

#include "tools/trainer/compute/gpu/activations.h"
#include "tools/trainer/compute/gpu/copies.h"
#include "tools/trainer/compute/gpu/cross_entropy.h"
#include "tools/trainer/compute/gpu/lookups.h"
#include "tools/trainer/compute/gpu/norms.h"
#include "tools/trainer/compute/gpu/rope.h"
#include "tools/trainer/compute/gpu/rows.h"
#include "tools/trainer/compute/gpu/softmax.h"
#include "tools/trainer/compute/gpu/sums.h"

// Calls EACH(kernel) for every kernel.
#define SPILLWAY_TRAINER_KERNELS(EACH) \
  EACH(Copy)                           \
  EACH(Zero)                           \
  EACH(CopyRows)                       \
  EACH(ZeroHeads)                      \
  EACH(Add)                            \
  EACH(AddBias)                        \
  EACH(SumOfSquares)                   \
  EACH(AddUp)                          \
  EACH(BiasGradient)                   \
  EACH(Norm<false>)                    \
  EACH(Norm<true>)                     \
  EACH(NormGradient<false>)            \
  EACH(NormGradient<true>)             \
  EACH(ScaleGradient<false>)           \
  EACH(ScaleGradient<true>)            \
  EACH(Rope)                           \
  EACH(CausalSoftmax)                  \
  EACH(SoftmaxGradient)                \
  EACH(Swiglu)                         \
  EACH(SwigluGradient)                 \
  EACH(Gelu)                           \
  EACH(GeluGradient)                   \
  EACH(StartSoftmax)                   \
  EACH(GatherSoftmax)                  \
  EACH(AddLoss)                        \
  EACH(CrossEntropyGradient)           \
  EACH(Lookup)                         \
  EACH(LookupGradient)

#endif  // SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_KERNELS_H_
