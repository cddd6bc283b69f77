// SPDX-License-Identifier: Apache-2.0
//
// Makes the log that a killed process left beside the catalog durable. SQLite reads such a log from
// memory that the kernel may not have written to the disk yet, and takes its transactions for
// committed.

#ifndef SPILLWAY_IO_STORE_CATALOG_LOG_H_
#define SPILLWAY_IO_STORE_CATALOG_LOG_H_

#include <string>

#include "absl/status/status.h"

namespace spillway::io {

// Makes the log of the catalog at `catalog_path` durable, with its name; does nothing if there is
// no log. Until then, what the catalog says is free may be what a power cut would bring back. The
// errors are those of FileErrorToStatus. REQUIRES: no other process writes the catalog.
absl::Status MakeLogDurable(const std::string& catalog_path);

}  // namespace spillway::io

#endif  // SPILLWAY_IO_STORE_CATALOG_LOG_H_
