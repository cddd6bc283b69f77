// SPDX-License-Identifier: Apache-2.0
//
// Detects the instruction sets of this machine for Highway's dispatch. A kernel of the trainer
// computes other bits where the processor has no fused multiply-add, so the choice may depend on
// the machine alone.
//
// Highway's own library is not linked, for two reasons. It takes 3 ms of each start of the process
// to measure a clock. And a library that is loaded when a kernel first runs can fail to load in the
// middle of training (too many open files). The compiler provides what the library is needed for;
// x86-64-v2 to x86-64-v4 are levels of the System V ABI. On other architectures, the kernels run on
// the instruction set for which the compiler generates code.

#include <hwy/targets.h>

#include <cstdint>

namespace hwy {
namespace {

int64_t targets_for_test = 0;  // set by SetSupportedTargetsForTest

int64_t DetectTargets() {
  int64_t targets = HWY_STATIC_TARGET;
#if HWY_ARCH_X86_64
  if (!__builtin_cpu_supports("x86-64-v2")) return targets;
  targets |= HWY_SSSE3;
  if (!__builtin_cpu_supports("aes") || !__builtin_cpu_supports("pclmul")) return targets;
  targets |= HWY_SSE4;
  if (!__builtin_cpu_supports("x86-64-v3")) return targets;
  targets |= HWY_AVX2;
  if (__builtin_cpu_supports("x86-64-v4")) targets |= HWY_AVX3;
#endif
  return targets;
}

}  // namespace

int64_t SupportedTargets() {
  static const int64_t detected = DetectTargets();
  return targets_for_test != 0 ? targets_for_test : detected;
}

ChosenTarget& GetChosenTarget() {
  static ChosenTarget chosen;
  return chosen;
}

// Like Highway's own function, makes the next dispatch use the new targets.
void SetSupportedTargetsForTest(int64_t targets) {
  targets_for_test = targets;
  GetChosenTarget().DeInit();
}

}  // namespace hwy
