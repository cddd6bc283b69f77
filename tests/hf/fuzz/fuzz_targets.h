// SPDX-License-Identifier: Apache-2.0
//
// What a fuzzer calls: each target reads `bytes` as one kind of file and aborts when an accepted
// file breaks the reader's promises. The unit suite drives the same targets with seeded mutations,
// so that they stay honest where libFuzzer is not built.

#ifndef SPILLWAY_TESTS_HF_FUZZ_FUZZ_TARGETS_H_
#define SPILLWAY_TESTS_HF_FUZZ_FUZZ_TARGETS_H_

#include <string_view>

namespace spillway::hf {

// Each returns whether the bytes were accepted.
bool FuzzSafetensors(std::string_view bytes);
bool FuzzShardIndex(std::string_view bytes);
bool FuzzNpy(std::string_view bytes);
bool FuzzConfig(std::string_view bytes);

}  // namespace spillway::hf

#endif  // SPILLWAY_TESTS_HF_FUZZ_FUZZ_TARGETS_H_
