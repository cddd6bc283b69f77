// SPDX-License-Identifier: Apache-2.0
//
// A scratch store removes itself when it is closed. A second interrupt ends the process before
// that.

#ifndef SPILLWAY_TOOLS_SPILLWAY_TRAIN_SCRATCH_STORE_H_
#define SPILLWAY_TOOLS_SPILLWAY_TRAIN_SCRATCH_STORE_H_

#include <string>
#include <vector>

namespace spillway::command {

// From now on a second interrupt says on stderr how a scratch store that is left in the folders
// `store` is removed. It removes nothing itself: by then the store may be closing, and another
// process may have the folders.
void NameScratchStoreOnSecondInterrupt(const std::vector<std::string>& store);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_TRAIN_SCRATCH_STORE_H_
