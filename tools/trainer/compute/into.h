// SPDX-License-Identifier: Apache-2.0

#ifndef SPILLWAY_TOOLS_TRAINER_COMPUTE_INTO_H_
#define SPILLWAY_TOOLS_TRAINER_COMPUTE_INTO_H_

#include <cstdint>

namespace spillway::trainer {

// Whether a result overwrites what is there or is added to it.
enum class Into : uint8_t { kOverwrite, kAdd };

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_COMPUTE_INTO_H_
