// SPDX-License-Identifier: Apache-2.0

#include "src/base/errno_status.h"

#include <sys/resource.h>

#include <cerrno>
#include <cstring>
#include <string>

namespace spillway::base {
namespace {

absl::StatusCode Code(int error) {
  switch (error) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
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

// If the error comes from a limit of the process or the machine, returns how to raise that limit;
// otherwise an empty string.
std::string Advice(int error) {
  rlimit limit;
  if (error == EMFILE && ::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    return "; this process may have " + std::to_string(limit.rlim_cur) +
           " files open: raise that limit ('ulimit -n')";
  }
  if (error == EFBIG && ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY) {
    return "; this process may write files of " + std::to_string(limit.rlim_cur) +
           " bytes: raise that limit ('ulimit -f')";
  }
  if (error == ENFILE) return "; raise the machine's limit ('sysctl fs.file-max')";
  return "";
}

}  // namespace

absl::Status ErrnoToStatus(int error, std::string_view what) {
  const char* name = strerrorname_np(error);
  const char* meaning = strerrordesc_np(error);
  std::string message(what);
  message += ": ";
  message += meaning != nullptr ? meaning : "unknown error";
  message += " (" + (name != nullptr ? std::string(name) : std::to_string(error)) + ")";
  message += Advice(error);
  return absl::Status(Code(error), message);
}

absl::Status ThreadErrorToStatus(int error, std::string_view what) {
  const absl::Status status = ErrnoToStatus(error, "cannot start " + std::string(what));
  return absl::ResourceExhaustedError(
      std::string(status.message()) +
      "; memory, or what this process may have of it or of threads, does not suffice: raise the "
      "limits ('ulimit -v', 'ulimit -d', 'ulimit -u') or free some");
}

}  // namespace spillway::base
