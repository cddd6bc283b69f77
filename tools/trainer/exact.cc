// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/exact.h"

#include <cstdlib>
#include <limits>

#include "absl/strings/str_format.h"

namespace spillway::trainer {

std::string Exact(double value) {
  for (int digits = 1; digits < std::numeric_limits<double>::max_digits10; ++digits) {
    std::string text = absl::StrFormat("%.*g", digits, value);
    if (std::strtod(text.c_str(), nullptr) == value) return text;
  }
  return absl::StrFormat("%.17g", value);
}

}  // namespace spillway::trainer
