// SPDX-License-Identifier: Apache-2.0
//
// The format of the file of --config: a subset of TOML, one flag per line. --print-config writes
// it.
//
//   # a comment
//   data = "my \"best\" run"   # text with TOML's escapes
//   save = 'C:\run'            # text without escapes
//   steps = 400                # or true, or false
//   betas = [0.9, 0.95]
//
// Tables, dotted or quoted keys, multi-line texts and dates are refused, and the error names the
// line. The parser is our own because the packaged ones are not safe on hostile files: toml++ 3.3
// (of Debian 12) overflows the stack on [a.a.a...] of 200 kB, and CLI11's takes 20 GB. This one
// takes time and memory in proportion to the file, and does not recurse.

#ifndef SPILLWAY_TOOLS_SPILLWAY_COMMAND_CONFIG_FILE_H_
#define SPILLWAY_TOOLS_SPILLWAY_COMMAND_CONFIG_FILE_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace spillway::command {

struct ConfigEntry {
  int line = 0;  // counted from 1
  std::string key;
  // At least one; exactly one unless is_array. Numbers stay as they are written.
  std::vector<std::string> values;
  bool is_array = false;
};

// Returns the entries in the file's order. No key occurs twice. InvalidArgument names the line,
// "line 3: ...", and says what would be accepted.
absl::StatusOr<std::vector<ConfigEntry>> ParseConfig(std::string_view text);

// Returns `value` on one line in double quotes, which ParseConfig reads as the same bytes.
// InvalidArgument if it is not UTF-8, which TOML cannot hold.
absl::StatusOr<std::string> QuoteForConfig(std::string_view value);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_COMMAND_CONFIG_FILE_H_
