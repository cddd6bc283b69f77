// SPDX-License-Identifier: Apache-2.0
//
// Sizes and counts as people write and read them. GiB is not GB.

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

// "17 B", "64.0 KiB", "1.5 GiB".
std::string FormatBytes(uint64_t bytes);

// "1 folder", "2 folders"; for nouns that take an s.
std::string FormatCount(uint64_t count, std::string_view noun);

// "123", "48MiB", "1.5GiB", "8GB", with or without a space or a final B; a bare number is bytes.
// InvalidArgument says what was given and what is accepted.
absl::StatusOr<uint64_t> ParseBytes(std::string_view text);

}  // namespace spillway::base

#endif  // SPILLWAY_BASE_BYTES_H_
