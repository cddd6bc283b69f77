// SPDX-License-Identifier: Apache-2.0
//
// Finds the file system of a folder that may not exist yet.

#ifndef SPILLWAY_BASE_EXISTING_FOLDER_H_
#define SPILLWAY_BASE_EXISTING_FOLDER_H_

#include <string>

namespace spillway::base {

// Returns the absolute path of the folder or, if it does not exist, of its nearest ancestor that
// does. The folder will be created on that ancestor's file system.
std::string ExistingFolder(const std::string& folder);

}  // namespace spillway::base

#endif  // SPILLWAY_BASE_EXISTING_FOLDER_H_
