// SPDX-License-Identifier: Apache-2.0
//
// The one place where an errno becomes a Status.

#ifndef SPILLWAY_BASE_ERRNO_STATUS_H_
#define SPILLWAY_BASE_ERRNO_STATUS_H_

#include <string_view>

#include "absl/status/status.h"

namespace spillway::base {

// "WHAT: No space left on device (ENOSPC)", and where a process or the machine has too many files
// open, what the limit is and how to raise it. Codes: ResourceExhausted (ENOSPC, EDQUOT, EFBIG,
// ENOMEM, EMFILE, ENFILE), NotFound (ENOENT), AlreadyExists (EEXIST), FailedPrecondition (EACCES,
// EPERM, EROFS), InvalidArgument (EINVAL), Unavailable for the rest, EIO among them.
absl::Status ErrnoToStatus(int error, std::string_view what);

// "cannot start WHAT: Resource temporarily unavailable (EAGAIN); ...": ResourceExhausted, naming
// the limits that a thread needs room in. For the errno of pthread_create, as std::thread throws
// it.
absl::Status ThreadErrorToStatus(int error, std::string_view what);

}  // namespace spillway::base

#endif  // SPILLWAY_BASE_ERRNO_STATUS_H_
