// SPDX-License-Identifier: Apache-2.0
//
// Numbers in words that lose nothing.

#ifndef SPILLWAY_TOOLS_TRAINER_EXACT_H_
#define SPILLWAY_TOOLS_TRAINER_EXACT_H_

#include <string>

namespace spillway::trainer {

// A number in the fewest digits that read back as the same one.
std::string Exact(double value);

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_EXACT_H_
