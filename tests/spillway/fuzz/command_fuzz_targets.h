// SPDX-License-Identifier: Apache-2.0
//
// The fuzz targets. Each takes any bytes and returns whether they were accepted. The fuzzers call
// them, and command_fuzz_test calls them with the corpus beside this file and mutations of it.

#ifndef SPILLWAY_TESTS_SPILLWAY_FUZZ_COMMAND_FUZZ_TARGETS_H_
#define SPILLWAY_TESTS_SPILLWAY_FUZZ_COMMAND_FUZZ_TARGETS_H_

#include <string_view>

namespace spillway::test {

// Reads a step log or a trace, and makes the report page from it.
bool FuzzReport(std::string_view bytes);
// Parses a command line, given as one word per line, and runs nothing.
bool FuzzFlags(std::string_view bytes);
// Reads a --config file. Writes each value and reads it again; aborts if it is not the same.
bool FuzzConfig(std::string_view bytes);

}  // namespace spillway::test

#endif  // SPILLWAY_TESTS_SPILLWAY_FUZZ_COMMAND_FUZZ_TARGETS_H_
