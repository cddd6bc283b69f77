// SPDX-License-Identifier: Apache-2.0
//
// Macros that return early from a function on an error, for the tools that include only public
// headers and tools/hf and so have no other such macros. The prefix SPILLWAY_HF_ makes it possible
// to use both kinds in one file.

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

// Assigns the value of `rexpr`, an absl::StatusOr, to `lhs`, a declaration or an lvalue; returns
// its error if it has one. A type with a comma outside parentheses needs an alias first.
#define SPILLWAY_HF_ASSIGN_OR_RETURN(lhs, rexpr) \
  SPILLWAY_HF_ASSIGN_OR_RETURN_IMPL_(SPILLWAY_HF_CONCAT_(spillway_hf_value_, __LINE__), lhs, rexpr)

#define SPILLWAY_HF_ASSIGN_OR_RETURN_IMPL_(value, lhs, rexpr) \
  auto value = (rexpr);                                       \
  if (!value.ok()) return std::move(value).status();          \
  lhs = *std::move(value)

#define SPILLWAY_HF_CONCAT_(a, b) SPILLWAY_HF_CONCAT_IMPL_(a, b)
#define SPILLWAY_HF_CONCAT_IMPL_(a, b) a##b

#endif  // SPILLWAY_TOOLS_HF_STATUS_MACROS_H_
