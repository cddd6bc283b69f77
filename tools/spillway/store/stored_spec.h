// SPDX-License-Identifier: Apache-2.0
//
// Finds what a tensor of a commit is: the engine's description of it, parsed.

#ifndef SPILLWAY_TOOLS_SPILLWAY_STORE_STORED_SPEC_H_
#define SPILLWAY_TOOLS_SPILLWAY_STORE_STORED_SPEC_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "spillway/types.h"
#include "src/engine/tensor_reader.h"

namespace spillway::command {

// Returns the tensor's specification, whose name is not checked; none if the commit has no such
// tensor. DataLoss if its description is not one of the engine's.
absl::StatusOr<std::optional<TensorSpec>> FindSpec(engine::TensorReader& reader,
                                                   const std::string& name);

}  // namespace spillway::command

#endif  // SPILLWAY_TOOLS_SPILLWAY_STORE_STORED_SPEC_H_
