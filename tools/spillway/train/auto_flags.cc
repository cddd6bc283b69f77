// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/train/auto_flags.h"

#include <string>

#include "absl/status/statusor.h"
#include "spillway/engine.h"
#include "src/base/bytes.h"
#include "src/base/status_macros.h"
#include "tools/spillway/command/exit_code.h"

namespace spillway::command {

void AddAutoFlags(CLI::App* app, AutoFlags* flags) {
  AddFlag(app, "--auto", &flags->is_on,
          "Measure the machine and choose budgets, page size, places, micro-batches and their "
          "order, unless given. Measured rates are kept for 30 days in ~/.cache/spillway (or "
          "$XDG_CACHE_HOME/spillway): delete machine-*.json there to measure again");
  AddOption(
      app, "--memory",
      [flags](const std::string& text) -> absl::Status {
        SPILLWAY_ASSIGN_OR_RETURN(const uint64_t bytes, base::ParseBytes(text));
        if (bytes == 0 || bytes == kUnlimited)
          return absl::InvalidArgumentError("it must be a size above 0, as 6GiB");
        flags->memory_bytes = bytes;
        return absl::OkStatus();
      },
      "With --auto: what the run may take in all, beside a GPU's (default: 7/8 of what is free)")
      .Type("SIZE");
  AddParsed(
      app, "--tokens", &flags->tokens,
      [](const std::string& text) { return ParseInteger(text, 1, int64_t{1} << 40); },
      "With --auto: tokens of a step, which it divides into micro-batches")
      .Type("N");
}

void NoteGiven(const CLI::App& app, AutoFlags* flags) {
  flags->has_device_bytes = IsGiven(app, "--device-bytes");
  flags->has_pinned_bytes = IsGiven(app, "--pinned-bytes");
  flags->has_page_bytes = IsGiven(app, "--page-bytes");
  flags->has_places = IsGiven(app, "--place") || IsGiven(app, "--activation-tier");
  flags->has_batch = IsGiven(app, "--batch");
  flags->has_accumulate = IsGiven(app, "--accumulate");
}

absl::Status CheckAutoFlags(const AutoFlags& flags) {
  if (flags.is_on) return absl::OkStatus();
  if (flags.memory_bytes)
    return UsageError(
        "--memory is divided by --auto; give --auto too, or --device-bytes and "
        "--pinned-bytes");
  if (flags.tokens)
    return UsageError(
        "--tokens is divided by --auto; give --auto too, or --batch and --accumulate");
  return absl::OkStatus();
}

}  // namespace spillway::command
