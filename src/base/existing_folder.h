// SPDX-License-Identifier: Apache-2.0
//
// Where a folder that may not be there yet will be.

#ifndef SPILLWAY_BASE_EXISTING_FOLDER_H_
#define SPILLWAY_BASE_EXISTING_FOLDER_H_

#include <string>

namespace spillway::base {

// The folder, absolute, or the nearest above it that exists: its file system is where the folder
// will be.
std::string ExistingFolder(const std::string& folder);

}  // namespace spillway::base

#endif  // SPILLWAY_BASE_EXISTING_FOLDER_H_
