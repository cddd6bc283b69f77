// SPDX-License-Identifier: Apache-2.0
//
// The one place where an errno becomes a Status.

#ifndef SPILLWAY_BASE_ERRNO_STATUS_H_
#define SPILLWAY_BASE_ERRNO_STATUS_H_

#include <string_view>

#include "absl/status/status.h"

namespace spillway::base {

// Returns a status with the message "WHAT: No space left on device (ENOSPC)". If a limit of the
// process or the machine on open files or file sizes was reached, the message says how to raise it.
// Codes: ResourceExhausted (ENOSPC, EDQUOT, EFBIG, ENOMEM, EMFILE, ENFILE), NotFound (ENOENT),
// AlreadyExists (EEXIST), FailedPrecondition (EACCES, EPERM, EROFS), InvalidArgument (EINVAL),
// Unavailable for the rest, including EIO.
absl::Status ErrnoToStatus(int error, std::string_view what);

// Returns ResourceExhausted with the message "cannot start WHAT: Resource temporarily unavailable
// (EAGAIN); ...", which names the limits that can prevent a thread from starting. `error` is the
// errno of pthread_create, as std::thread throws it.
absl::Status ThreadErrorToStatus(int error, std::string_view what);

}  // namespace spillway::base

#endif  // SPILLWAY_BASE_ERRNO_STATUS_H_
