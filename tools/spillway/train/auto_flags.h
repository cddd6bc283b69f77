// SPDX-License-Identifier: Apache-2.0
//
// The flags of `spillway train --auto`, and which flags the user gave, so that --auto leaves them.

#ifndef SPILLWAY_TOOLS_SPILLWAY_TRAIN_AUTO_FLAGS_H_
#define SPILLWAY_TOOLS_SPILLWAY_TRAIN_AUTO_FLAGS_H_

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "tools/spillway/command/arguments.h"

namespace spillway::command {

struct AutoFlags {
  bool is_on = false;
  std::optional<uint64_t> memory_bytes;  // that the run may take in all; none: most of what is free
  std::optional<int64_t> tokens;         // of a step; none: those of the flags
  // Whether each of these was given.
  bool has_device_bytes = false, has_pinned_bytes = false, has_page_bytes = false;
  bool has_places = false, has_batch = false, has_accumulate = false;
};

void AddAutoFlags(CLI::App* app, AutoFlags* flags);
// Notes which flags were given. REQUIRES: the flags of `spillway train` are all read.
void NoteGiven(const CLI::App& app, AutoFlags* flags);
// UsageError: a flag is of --auto, and --auto was not given.
absl::Status CheckAutoFlags(const AutoFlags& flags);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_TRAIN_AUTO_FLAGS_H_
