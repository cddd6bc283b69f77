// SPDX-License-Identifier: Apache-2.0
//
// Converts a std::string_view for Abseil's functions: Debian's Abseil has its own string_view type.

#ifndef SPILLWAY_BASE_VIEW_H_
#define SPILLWAY_BASE_VIEW_H_

#include <string_view>

#include "absl/strings/string_view.h"

namespace spillway::base {

inline absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

}  // namespace spillway::base

#endif  // SPILLWAY_BASE_VIEW_H_
