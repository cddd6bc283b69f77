// SPDX-License-Identifier: Apache-2.0
//
// A file that exists only while it is open: for probes and measurements, which must leave nothing
// behind however they end.

#ifndef SPILLWAY_IO_NAMELESS_FILE_H_
#define SPILLWAY_IO_NAMELESS_FILE_H_

#include <string>

#include "absl/status/statusor.h"
#include "io/direct_file.h"

namespace spillway::io {

// O_TMPFILE, or made and unlinked where the file system does not have that. The errno's status if
// the folder takes no file.
absl::StatusOr<DirectFile> OpenNamelessFile(const std::string& folder);

}  // namespace spillway::io

#endif  // SPILLWAY_IO_NAMELESS_FILE_H_
