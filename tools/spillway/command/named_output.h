// SPDX-License-Identifier: Apache-2.0
//
// Opens a file that a flag names for output, so that no file of the user's is lost by it.

#ifndef SPILLWAY_TOOLS_SPILLWAY_COMMAND_NAMED_OUTPUT_H_
#define SPILLWAY_TOOLS_SPILLWAY_COMMAND_NAMED_OUTPUT_H_

#include <string>

#include "absl/status/statusor.h"
#include "tools/trainer/metrics/output_file.h"

namespace spillway::command {

// Opens the file and changes nothing in it. AlreadyExists if there is a file that is not of `kind`
// and may not be replaced. `force` permits replacing it, except in the folder of a store, a model
// or a data set, where nothing is replaced. Unavailable if it cannot be written. Messages name the
// flag.
absl::StatusOr<trainer::OutputFile> OpenOutput(const std::string& flag, const std::string& path,
                                               const trainer::OutputFile::Kind& kind, bool force);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_COMMAND_NAMED_OUTPUT_H_
