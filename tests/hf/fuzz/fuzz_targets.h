// SPDX-License-Identifier: Apache-2.0
//
// The functions that the fuzzers call. Each target reads `bytes` as one kind of file, and aborts if
// an accepted file or the error for a rejected one breaks the reader's promises. The unit suite
// calls the same targets with seeded mutations, so that they are also tested where libFuzzer is not
// built.

#ifndef SPILLWAY_TESTS_HF_FUZZ_FUZZ_TARGETS_H_
#define SPILLWAY_TESTS_HF_FUZZ_FUZZ_TARGETS_H_

#include <string_view>

namespace spillway::hf {

// Each returns whether the bytes were accepted. FuzzShardIndex accepts an index whose only fault is
// that its shards do not exist.
bool FuzzSafetensors(std::string_view bytes);
bool FuzzShardIndex(std::string_view bytes);
bool FuzzNpy(std::string_view bytes);
bool FuzzConfig(std::string_view bytes);

}  // namespace spillway::hf

#endif  // SPILLWAY_TESTS_HF_FUZZ_FUZZ_TARGETS_H_
