// SPDX-License-Identifier: Apache-2.0
//
// Checks that the files and folders that a run uses do not collide. Collisions are, for example, a
// trace written over the store's catalog, an export into the store, and two logs in one file.

#ifndef SPILLWAY_TOOLS_SPILLWAY_TRAIN_RUN_PLACES_H_
#define SPILLWAY_TOOLS_SPILLWAY_TRAIN_RUN_PLACES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace spillway::command {

// A path as the user gave it; empty: none was given.
struct NamedPlace {
  const char* flag;
  std::string path;
};

// UsageError if two places collide; the message names both. These collide: two names of one file;
// the export's folder and a file in it; an export that lies in a file; a store that lies in a file;
// a file in the store's folder with a name that only a store gives; the store's folder and an
// export that is, contains or lies in it. The places need not exist, and links are followed. Pipes
// and devices collide with nothing.
absl::Status CheckApart(const std::vector<NamedPlace>& files, const std::string& save,
                        const std::vector<std::string>& store);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_TRAIN_RUN_PLACES_H_
