// SPDX-License-Identifier: Apache-2.0
//
// The file of --config: the part of TOML that --print-config writes, one flag a line.
//
//   # a comment
//   data = "my \"best\" run"   # text, with TOML's escapes
//   save = 'C:\run'            # text as it stands
//   steps = 400                # or true, or false
//   betas = [0.9, 0.95]
//
// Tables, dotted or quoted keys, texts of several lines and dates are refused, each with its line.
// The reader is our own because the packaged ones are not safe on hostile files: toml++ 3.3 (of
// Debian 12) overflows the stack on [a.a.a...] of 200 kB, CLI11's takes 20 GB. This one takes time
// and memory in proportion to the file, and no stack.

#ifndef SPILLWAY_TOOLS_SPILLWAY_COMMAND_CONFIG_FILE_H_
#define SPILLWAY_TOOLS_SPILLWAY_COMMAND_CONFIG_FILE_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace spillway::command {

struct ConfigEntry {
  int line = 0;  // from 1
  std::string key;
  std::vector<std::string> values;  // an array's, never none; else one. Numbers as they are written
  bool is_array = false;
};

// The entries in the file's order; no key is there twice. InvalidArgument: "line 3: ..." and what
// would be accepted.
absl::StatusOr<std::vector<ConfigEntry>> ParseConfig(std::string_view text);

// `value` on one line in double quotes, which ParseConfig reads as the same bytes. InvalidArgument:
// it is not UTF-8, which TOML cannot hold.
absl::StatusOr<std::string> QuoteForConfig(std::string_view value);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_COMMAND_CONFIG_FILE_H_
