// SPDX-License-Identifier: Apache-2.0
//
// Maps a status to an exit code.

#include "tools/spillway/command/exit_code.h"

#include <cerrno>
#include <cstring>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"

namespace spillway::command {
namespace {

constexpr char kPayload[] = "spillway/exit_code";

// If the operating system runs out of something, most often space in a file system, the status has
// the same code as for a budget that is too small. Only the errno's text in the message tells them
// apart.
ExitCode ExitCodeOfExhausted(const absl::Status& status) {
  const auto names = [&](int error) {
    return absl::StrContains(status.message(), std::strerror(error));
  };
  for (const int error : {ENOSPC, EDQUOT, EFBIG, EMFILE, ENFILE}) {
    if (names(error)) return ExitCode::kFailed;
  }
  // Memory, or threads, which need memory.
  for (const int error : {ENOMEM, EAGAIN}) {
    if (names(error)) return ExitCode::kCannot;
  }
  return ExitCode::kUsage;
}

}  // namespace

absl::Status UsageError(std::string_view message) {
  return WithExitCode(absl::InvalidArgumentError({message.data(), message.size()}),
                      ExitCode::kUsage);
}

absl::Status WithExitCode(const absl::Status& status, ExitCode code) {
  absl::Status marked = status;
  if (!marked.ok()) {
    // Goes through a string_view: clang and g++ mangle the name of Cord's constructor from a string
    // differently.
    const std::string digits = std::to_string(static_cast<int>(code));
    marked.SetPayload(kPayload, absl::Cord(absl::string_view(digits)));
  }
  return marked;
}

ExitCode ExitCodeOf(const absl::Status& status) {
  if (const auto payload = status.GetPayload(kPayload)) {
    int code = 0;
    if (absl::SimpleAtoi(std::string(*payload), &code)) return static_cast<ExitCode>(code);
  }
  switch (status.code()) {
    case absl::StatusCode::kOk: return ExitCode::kDone;
    case absl::StatusCode::kDataLoss: return ExitCode::kCorrupt;
    case absl::StatusCode::kCancelled: return ExitCode::kInterrupted;
    case absl::StatusCode::kUnimplemented: return ExitCode::kCannot;
    case absl::StatusCode::kResourceExhausted: return ExitCodeOfExhausted(status);
    default: return ExitCode::kFailed;
  }
}

}  // namespace spillway::command
