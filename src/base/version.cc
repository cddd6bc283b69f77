// SPDX-License-Identifier: Apache-2.0

#include "spillway/version.h"

#include "spillway_commit.h"

namespace spillway {

std::string_view Version() { return SPILLWAY_VERSION; }

std::string_view BuildCommit() { return SPILLWAY_COMMIT; }

}  // namespace spillway
