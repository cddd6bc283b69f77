// SPDX-License-Identifier: Apache-2.0
//
// Formats and parses sizes and counts in the form that people use. GiB is not GB.

#ifndef SPILLWAY_BASE_BYTES_H_
#define SPILLWAY_BASE_BYTES_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace spillway::base {

constexpr uint64_t RoundDown(uint64_t value, uint64_t multiple) {
  return value / multiple * multiple;
}
constexpr uint64_t RoundUp(uint64_t value, uint64_t multiple) {
  return RoundDown(value + multiple - 1, multiple);
}

// Returns "17 B", "64.0 KiB", "1.5 GiB".
std::string FormatBytes(uint64_t bytes);

// Returns "1 folder", "2 folders". The noun's plural must end in an added s.
std::string FormatCount(uint64_t count, std::string_view noun);

// Parses "123", "48MiB", "1.5GiB", "8GB". The space before the unit and the unit's final B are
// optional; a bare number is bytes. InvalidArgument says what was given and what is accepted.
absl::StatusOr<uint64_t> ParseBytes(std::string_view text);

}  // namespace spillway::base

#endif  // SPILLWAY_BASE_BYTES_H_
