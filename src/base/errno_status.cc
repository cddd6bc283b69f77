// SPDX-License-Identifier: Apache-2.0

#include "src/base/errno_status.h"

#include <cerrno>
#include <cstring>
#include <string>

namespace spillway::base {
namespace {

absl::StatusCode Code(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case ENOMEM:
    case EMFILE:
    case ENFILE: return absl::StatusCode::kResourceExhausted;
    case ENOENT: return absl::StatusCode::kNotFound;
    case EEXIST: return absl::StatusCode::kAlreadyExists;
    case EACCES:
    case EPERM:
    case EROFS: return absl::StatusCode::kFailedPrecondition;
    case EINVAL: return absl::StatusCode::kInvalidArgument;
    default: return absl::StatusCode::kUnavailable;
  }
}

}  // namespace

absl::Status ErrnoToStatus(int error, std::string_view what) {
  const char* name = strerrorname_np(error);
  const char* meaning = strerrordesc_np(error);
  std::string message(what);
  message += ": ";
  message += meaning != nullptr ? meaning : "unknown error";
  message += " (" + (name != nullptr ? std::string(name) : std::to_string(error)) + ")";
  return absl::Status(Code(error), message);
}

}  // namespace spillway::base
