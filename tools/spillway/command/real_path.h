// SPDX-License-Identifier: Apache-2.0
//
// Compares the places that paths name.

#ifndef SPILLWAY_TOOLS_SPILLWAY_COMMAND_REAL_PATH_H_
#define SPILLWAY_TOOLS_SPILLWAY_COMMAND_REAL_PATH_H_

#include <filesystem>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace spillway::command {

// Returns the path as an absolute one without links and without a slash at its end, so that two
// names of a place are equal. The place need not exist.
std::filesystem::path RealPath(const std::string& path);

// UsageError if two of the paths name the same place.
absl::Status CheckNamedOnce(const std::vector<std::string>& paths);

// Whether `inner` is `outer` or lies in it. REQUIRES: both are from RealPath.
bool LiesIn(const std::filesystem::path& inner, const std::filesystem::path& outer);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_COMMAND_REAL_PATH_H_
