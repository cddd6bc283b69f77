// SPDX-License-Identifier: Apache-2.0
//
// GoogleTest matchers for Status and StatusOr. Debian's Abseil has none.

#ifndef SPILLWAY_TESTS_HF_STATUS_MATCHERS_H_
#define SPILLWAY_TESTS_HF_STATUS_MATCHERS_H_

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace spillway::hf {

inline absl::Status StatusOf(const absl::Status& status) { return status; }
template <typename T>
absl::Status StatusOf(const absl::StatusOr<T>& result) {
  return result.status();
}

MATCHER(IsOk, "is OK") {
  const absl::Status status = StatusOf(arg);
  *result_listener << status.ToString();
  return status.ok();
}

// Matches an error of `code` whose message contains `text`.
MATCHER_P2(IsError, code, text, "is an error that says \"" + std::string(text) + "\"") {
  const absl::Status status = StatusOf(arg);
  *result_listener << status.ToString();
  return status.code() == code && std::string(status.message()).find(text) != std::string::npos;
}

inline auto IsInvalid(const char* text) {
  return IsError(absl::StatusCode::kInvalidArgument, text);
}

}  // namespace spillway::hf

#endif  // SPILLWAY_TESTS_HF_STATUS_MATCHERS_H_
