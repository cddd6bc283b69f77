// SPDX-License-Identifier: Apache-2.0
//
// Removes a scratch store when a second interrupt ends the process, which then has no time to close
// the store. Everywhere else the store removes itself.

#ifndef SPILLWAY_TOOLS_SPILLWAY_TRAIN_SCRATCH_STORE_H_
#define SPILLWAY_TOOLS_SPILLWAY_TRAIN_SCRATCH_STORE_H_

#include <string>
#include <vector>

namespace spillway::command {

// Returns those of the folders, each followed by the folders above it, that do not exist: what
// opening a store there makes.
std::vector<std::string> MissingFolders(const std::vector<std::string>& store);

// From now on a second interrupt removes the files of the scratch store that this process has open
// in the folders `store`, and those of the folders `made` that are empty then. If files stay, it
// says on stderr how they are removed. Does nothing to another store that lies there by then.
void RemoveOnSecondInterrupt(const std::vector<std::string>& store,
                             const std::vector<std::string>& made);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_TRAIN_SCRATCH_STORE_H_
