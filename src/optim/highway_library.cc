// SPDX-License-Identifier: Apache-2.0
//
// Highway's library, loaded when a kernel first runs. Highway 1.0 measures the resolution of the
// processor's clock when its library is loaded, which takes 3 ms: more than the rest of `spillway
// --version`. A kernel needs two functions of the library, which tell the machine's instruction
// sets. They are defined here and call the library's own. Without the library, kernels run on the
// instruction set that the compiler was told of.

#include <dlfcn.h>
#include <hwy/targets.h>

#include <cstdint>

namespace hwy {
namespace {

struct Library {
  int64_t (*supported_targets)() = nullptr;
  ChosenTarget& (*chosen_target)() = nullptr;
};

// libhwy.so.1 has these names in every version of Highway from 1.0.
Library Load() {
  void* const library = dlopen("libhwy.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return {};
  return {
      .supported_targets =
          reinterpret_cast<int64_t (*)()>(dlsym(library, "_ZN3hwy16SupportedTargetsEv")),
      .chosen_target =
          reinterpret_cast<ChosenTarget& (*)()>(dlsym(library, "_ZN3hwy15GetChosenTargetEv")),
  };
}

const Library& TheLibrary() {
  static const Library library = Load();
  return library;
}

}  // namespace

int64_t SupportedTargets() {
  const auto supported_targets = TheLibrary().supported_targets;
  return supported_targets != nullptr ? supported_targets() : HWY_STATIC_TARGET;
}

ChosenTarget& GetChosenTarget() {
  static ChosenTarget without_library;
  const auto chosen_target = TheLibrary().chosen_target;
  return chosen_target != nullptr ? chosen_target() : without_library;
}

}  // namespace hwy
