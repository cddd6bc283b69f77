// SPDX-License-Identifier: Apache-2.0
//
// Which Spillway is linked.

#ifndef SPILLWAY_VERSION_H_
#define SPILLWAY_VERSION_H_

#include <string_view>

#include "spillway/export.h"

namespace spillway {

// "0.1.0".
SPILLWAY_EXPORT std::string_view Version();

// The git commit that the library was built from, abbreviated, with "-dirty" after it where files
// had been changed; "unknown" outside a git checkout.
SPILLWAY_EXPORT std::string_view BuildCommit();

}  // namespace spillway

#endif  // SPILLWAY_VERSION_H_
