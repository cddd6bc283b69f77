// SPDX-License-Identifier: Apache-2.0
//
// Macros that return from the enclosing function if an absl::Status or absl::StatusOr is an error.

#ifndef SPILLWAY_BASE_STATUS_MACROS_H_
#define SPILLWAY_BASE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define SPILLWAY_RETURN_IF_ERROR(expression)                                \
  do {                                                                      \
    if (absl::Status spillway_status = (expression); !spillway_status.ok()) \
      return spillway_status;                                               \
  } while (false)

// `lhs` may be a declaration or an lvalue.
#define SPILLWAY_ASSIGN_OR_RETURN(lhs, expression) \
  SPILLWAY_ASSIGN_OR_RETURN_(SPILLWAY_CONCAT_(spillway_statusor_, __LINE__), lhs, expression)
#define SPILLWAY_ASSIGN_OR_RETURN_(statusor, lhs, expression) \
  auto statusor = (expression);                               \
  if (!statusor.ok()) return std::move(statusor).status();    \
  lhs = *std::move(statusor)
#define SPILLWAY_CONCAT_(a, b) SPILLWAY_CONCAT_INNER_(a, b)
#define SPILLWAY_CONCAT_INNER_(a, b) a##b

#endif  // SPILLWAY_BASE_STATUS_MACROS_H_
