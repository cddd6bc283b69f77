// SPDX-License-Identifier: Apache-2.0

#include "src/base/status_macros.h"

#include <gtest/gtest.h>

#include <memory>

namespace spillway::base {
namespace {

absl::StatusOr<std::unique_ptr<int>> Boxed(int value) {
  if (value < 0) return absl::InvalidArgumentError("negative");
  return std::make_unique<int>(value);
}

absl::StatusOr<int> SumOfTwo(int a, int b, int* evaluations) {
  SPILLWAY_ASSIGN_OR_RETURN(const std::unique_ptr<int> first, (++*evaluations, Boxed(a)));
  std::unique_ptr<int> second;
  SPILLWAY_ASSIGN_OR_RETURN(second, (++*evaluations, Boxed(b)));
  return *first + *second;
}

absl::Status Twice(const absl::Status& first, const absl::Status& second) {
  SPILLWAY_RETURN_IF_ERROR(first);
  SPILLWAY_RETURN_IF_ERROR(second);
  return absl::OkStatus();
}

TEST(StatusMacros, AssignMovesTheValueAndEvaluatesOnce) {
  int evaluations = 0;
  EXPECT_EQ(SumOfTwo(3, 4, &evaluations).value(), 7);
  EXPECT_EQ(evaluations, 2);
}

TEST(StatusMacros, AssignReturnsTheErrorAndStopsThere) {
  int evaluations = 0;
  EXPECT_EQ(SumOfTwo(-1, 4, &evaluations).status(), absl::InvalidArgumentError("negative"));
  EXPECT_EQ(evaluations, 1);
}

TEST(StatusMacros, ReturnIfErrorReturnsTheFirstError) {
  EXPECT_TRUE(Twice(absl::OkStatus(), absl::OkStatus()).ok());
  EXPECT_EQ(Twice(absl::AbortedError("a"), absl::InternalError("b")), absl::AbortedError("a"));
  EXPECT_EQ(Twice(absl::OkStatus(), absl::InternalError("b")), absl::InternalError("b"));
}

}  // namespace
}  // namespace spillway::base
