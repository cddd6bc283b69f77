// SPDX-License-Identifier: Apache-2.0
//
// Numbers as text, without loss.

#ifndef SPILLWAY_TOOLS_TRAINER_EXACT_H_
#define SPILLWAY_TOOLS_TRAINER_EXACT_H_

#include <string>

namespace spillway::trainer {

// Returns `value` in the fewest digits that read back as the same number.
std::string Exact(double value);

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_EXACT_H_
