// SPDX-License-Identifier: Apache-2.0
//
// Opening a file that a flag names for output, so that nothing of the user's is lost by it.

#ifndef SPILLWAY_TOOLS_SPILLWAY_COMMAND_NAMED_OUTPUT_H_
#define SPILLWAY_TOOLS_SPILLWAY_COMMAND_NAMED_OUTPUT_H_

#include <string>

#include "absl/status/statusor.h"
#include "tools/trainer/metrics/output_file.h"

namespace spillway::command {

// Changes nothing in the file. AlreadyExists: it is there and not of `kind`, and may not be
// replaced; without exception that is so in the folder of a store, a model or a data set, whatever
// `force` says. Unavailable: it cannot be written. Messages name the flag.
absl::StatusOr<trainer::OutputFile> OpenOutput(const std::string& flag, const std::string& path,
                                               const trainer::OutputFile::Kind& kind, bool force);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_COMMAND_NAMED_OUTPUT_H_
