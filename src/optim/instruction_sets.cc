// SPDX-License-Identifier: Apache-2.0
//
// The instruction sets of this machine, for Highway's dispatch. A kernel of the trainer gives other
// bits where the processor has no fused multiply-add, so the choice may depend on the machine
// alone. Highway's own library is not linked: it takes 3 ms of each start of the process to measure
// a clock, and a library that is loaded when a kernel first runs can fail to load in the middle of
// a training (too many open files). The compiler knows what the library is needed for; x86-64-v2 to
// x86-64-v4 are levels of the System V ABI. Other architectures run on the instruction set that the
// compiler was told of.

#include <hwy/targets.h>

#include <cstdint>

namespace hwy {
namespace {

int64_t targets_for_test = 0;  // SetSupportedTargetsForTest

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

// As Highway's own: the next dispatch takes up the new targets.
void SetSupportedTargetsForTest(int64_t targets) {
  targets_for_test = targets;
  GetChosenTarget().DeInit();
}

}  // namespace hwy
