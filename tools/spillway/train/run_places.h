// SPDX-License-Identifier: Apache-2.0
//
// Whether what a run reads and what it writes lie apart: a trace over the store's catalog, an
// export into the store, two logs in one file.

#ifndef SPILLWAY_TOOLS_SPILLWAY_TRAIN_RUN_PLACES_H_
#define SPILLWAY_TOOLS_SPILLWAY_TRAIN_RUN_PLACES_H_

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace spillway::command {

// As the user named it; an empty path is none.
struct NamedPlace {
  const char* flag;
  std::string path;
};

// Nothing need be there yet; links are followed. A usage error names the two that collide: two
// files that are one, a file in the export's folder, or of a name that only a store gives in the
// store's folder, an export in the store's folder or around it. Pipes and devices collide with
// nothing.
absl::Status CheckApart(const std::vector<NamedPlace>& files, const std::string& save,
                        const std::vector<std::string>& store);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_TRAIN_RUN_PLACES_H_
