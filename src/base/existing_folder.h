// SPDX-License-Identifier: Apache-2.0
//
// Finds the file system of a folder that may not exist yet, and symbolic links that lead to none.

#ifndef SPILLWAY_BASE_EXISTING_FOLDER_H_
#define SPILLWAY_BASE_EXISTING_FOLDER_H_

#include <string>

namespace spillway::base {

// Returns the absolute path of the folder or, if it does not exist, of its nearest ancestor that
// does. The folder will be created on that ancestor's file system.
std::string ExistingFolder(const std::string& folder);

// Describes the first symbolic link on the path, the last part included, that does not lead to a
// folder: its name, where it points, why that is no folder, and the cure. Empty if there is none.
std::string BrokenLink(const std::string& path);

}  // namespace spillway::base

#endif  // SPILLWAY_BASE_EXISTING_FOLDER_H_
