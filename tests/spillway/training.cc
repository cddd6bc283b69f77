// SPDX-License-Identifier: Apache-2.0
//
// Reads the numbers of a run from its log and summary, and byte counts from messages.

#include "tests/spillway/training.h"

#include <regex>

namespace spillway::test {

Numbers Training::NumbersOf(const Json& json) const {
  Numbers numbers;
  for (const Json& line : ReadLog(log())) {
    const size_t step = line.value("step", size_t{0});
    if (step == 0) continue;
    if (numbers.steps.size() < step) numbers.steps.resize(step);
    numbers.steps[step - 1] = line["loss"].dump() + " " + line["grad_norm"].dump() + " " +
                              line["loss_scale"].dump() + " " + line["skipped"].dump();
  }
  numbers.weights_hash = json.is_object() ? json.value("weights_hash", "none") : "no summary";
  return numbers;
}

std::string BytesNamedIn(const std::string& message) {
  std::smatch match;
  const bool found = std::regex_search(message, match, std::regex(R"(\((\d+) bytes\))"));
  return found ? match[1].str() : "";
}

}  // namespace spillway::test
