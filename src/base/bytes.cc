// SPDX-License-Identifier: Apache-2.0

#include "src/base/bytes.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace spillway::base {
namespace {

// Returns the factor of a unit, given without its final B; 0 if there is no such unit.
uint64_t UnitFactor(std::string_view unit) {
  static constexpr std::string_view kPrefixes = "KMGTP";
  if (unit.empty()) return 1;
  const size_t power = kPrefixes.find(unit[0] == 'k' ? 'K' : unit[0]);
  if (power == std::string_view::npos || unit.size() > 2 || (unit.size() == 2 && unit[1] != 'i'))
    return 0;
  const uint64_t base = unit.size() == 2 ? 1024 : 1000;
  uint64_t factor = 1;
  for (size_t i = 0; i <= power; ++i) factor *= base;
  return factor;
}

}  // namespace

std::string FormatBytes(uint64_t bytes) {
  if (bytes < 1024) return absl::StrCat(bytes, " B");
  static constexpr std::array<const char*, 6> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  double value = static_cast<double>(bytes) / 1024;
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), value < 100 ? "%.1f %s" : "%.0f %s", value, kUnits[unit]);
  return text.data();
}

std::string FormatCount(uint64_t count, std::string_view noun) {
  return absl::StrCat(count, " ", std::string(noun), count == 1 ? "" : "s");
}

absl::StatusOr<uint64_t> ParseBytes(std::string_view text) {
  const auto bad = [&] {
    return absl::InvalidArgumentError(
        absl::StrCat("'", std::string(text),
                     "' is no size: write bytes, or a number with KiB, MiB, GiB, TiB (powers of "
                     "1024) or KB, MB, GB, TB (powers of 1000), for example 48MiB"));
  };
  if (text.starts_with('-')) return bad();
  double value = 0;
  const char* end = text.data() + text.size();
  auto [rest, error] = std::from_chars(text.data(), end, value, std::chars_format::fixed);
  if (error != std::errc() || std::isnan(value)) return bad();
  std::string_view unit(rest, static_cast<size_t>(end - rest));
  if (unit.starts_with(' ')) unit.remove_prefix(1);
  if (unit.ends_with('B') || unit.ends_with('b')) unit.remove_suffix(1);
  const uint64_t factor = UnitFactor(unit);
  if (factor == 0) return bad();
  if (uint64_t whole = 0; factor == 1) {  // plain bytes are exact: no fraction
    auto [last, whole_error] = std::from_chars(text.data(), rest, whole);
    const bool is_size = whole < uint64_t{1} << 63 || whole == UINT64_MAX;  // no limit
    if (whole_error != std::errc() || last != rest || !is_size) return bad();
    return whole;
  }
  const double bytes = value * static_cast<double>(factor);
  if (bytes >= 0x1p63) return bad();
  return static_cast<uint64_t>(std::llround(bytes));
}

}  // namespace spillway::base
