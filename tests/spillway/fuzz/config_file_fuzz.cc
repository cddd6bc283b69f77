// SPDX-License-Identifier: Apache-2.0

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "tests/spillway/fuzz/command_fuzz_targets.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  spillway::test::FuzzConfig(std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
