// SPDX-License-Identifier: Apache-2.0
//
// A file that exists only while it is open. Probes and measurements use it, because they must leave
// no file behind, however they end.

#ifndef SPILLWAY_IO_NAMELESS_FILE_H_
#define SPILLWAY_IO_NAMELESS_FILE_H_

#include <string>

#include "absl/status/statusor.h"
#include "io/direct_file.h"

namespace spillway::io {

// Opens a new file with O_TMPFILE, or creates and unlinks one if the file system does not support
// that. Returns the errno's status if no file can be made in the folder.
absl::StatusOr<DirectFile> OpenNamelessFile(const std::string& folder);

}  // namespace spillway::io

#endif  // SPILLWAY_IO_NAMELESS_FILE_H_
