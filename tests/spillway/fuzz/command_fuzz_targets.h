// SPDX-License-Identifier: Apache-2.0
//
// What a fuzzer calls, and command_fuzz_test with the corpus beside this file and its mutations:
// each takes any bytes and returns whether they were accepted.

#ifndef SPILLWAY_TESTS_SPILLWAY_FUZZ_COMMAND_FUZZ_TARGETS_H_
#define SPILLWAY_TESTS_SPILLWAY_FUZZ_COMMAND_FUZZ_TARGETS_H_

#include <string_view>

namespace spillway::test {

// A step log or a trace, up to the page.
bool FuzzReport(std::string_view bytes);
// A command line, a word a line. Nothing is run.
bool FuzzFlags(std::string_view bytes);
// A file of --config. What is read is written and read again, and must be the same.
bool FuzzConfig(std::string_view bytes);

}  // namespace spillway::test

#endif  // SPILLWAY_TESTS_SPILLWAY_FUZZ_COMMAND_FUZZ_TARGETS_H_
