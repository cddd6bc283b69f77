// SPDX-License-Identifier: Apache-2.0

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <string_view>

#include "tests/spillway/fuzz/command_fuzz_targets.h"

// Discards the help that the parser prints.
extern "C" int LLVMFuzzerInitialize(int* /*argc*/, char*** /*argv*/) {
  return std::freopen("/dev/null", "w", stdout) == nullptr ? 1 : 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  spillway::test::FuzzFlags(std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
