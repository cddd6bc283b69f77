// SPDX-License-Identifier: Apache-2.0
//
// Early return for absl::Status and absl::StatusOr in the tools, which include public headers and
// tools/hf only and so have no other macros. Names carry the prefix SPILLWAY_HF_ so that both kinds
// fit in one file.

#ifndef SPILLWAY_TOOLS_HF_STATUS_MACROS_H_
#define SPILLWAY_TOOLS_HF_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Returns `expr`, an absl::Status, from the enclosing function unless it is OK.
#define SPILLWAY_HF_RETURN_IF_ERROR(expr)                                       \
  do {                                                                          \
    if (::absl::Status spillway_hf_status = (expr); !spillway_hf_status.ok()) { \
      return spillway_hf_status;                                                \
    }                                                                           \
  } while (false)

// `lhs` (a declaration or an lvalue) takes the value of `rexpr`, an absl::StatusOr; its error is
// returned. A `lhs` with a comma outside parentheses needs an alias first.
#define SPILLWAY_HF_ASSIGN_OR_RETURN(lhs, rexpr) \
  SPILLWAY_HF_ASSIGN_OR_RETURN_IMPL_(SPILLWAY_HF_CONCAT_(spillway_hf_value_, __LINE__), lhs, rexpr)

#define SPILLWAY_HF_ASSIGN_OR_RETURN_IMPL_(value, lhs, rexpr) \
  auto value = (rexpr);                                       \
  if (!value.ok()) return std::move(value).status();          \
  lhs = *std::move(value)

#define SPILLWAY_HF_CONCAT_(a, b) SPILLWAY_HF_CONCAT_IMPL_(a, b)
#define SPILLWAY_HF_CONCAT_IMPL_(a, b) a##b

#endif  // SPILLWAY_TOOLS_HF_STATUS_MACROS_H_
