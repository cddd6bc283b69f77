// SPDX-License-Identifier: Apache-2.0
//
// The version of Spillway that is linked.

#ifndef SPILLWAY_VERSION_H_
#define SPILLWAY_VERSION_H_

#include <string_view>

#include "spillway/export.h"

namespace spillway {

// "0.1.0".
SPILLWAY_EXPORT std::string_view Version();

// The abbreviated git commit from which the library was built, followed by "-dirty" if files had
// been changed. "unknown" if it was not built in a git checkout.
SPILLWAY_EXPORT std::string_view BuildCommit();

}  // namespace spillway

#endif  // SPILLWAY_VERSION_H_
