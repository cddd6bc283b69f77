// SPDX-License-Identifier: Apache-2.0
//
// The names of a rule's moments, and checks of a parameter's format, shape and types. The other
// functions of state_specs.cc are public: spillway/optimizer.h.

#ifndef SPILLWAY_OPTIM_STATE_SPECS_H_
#define SPILLWAY_OPTIM_STATE_SPECS_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spillway/optimizer.h"

namespace spillway::optim {

// Returns the names of the rule's moments, which are PyTorch's, in the order in which the kernels
// take them. Those of Adafactor depend on whether the weight is factored.
std::vector<std::string_view> MomentNames(const Rule& rule, bool is_factored = false);

// Whether v is kept as means over the rows and columns of the weight's matrices. Adafactor keeps it
// so from two dimensions on.
bool IsFactored(const Rule& rule, const std::vector<int64_t>& shape);

// Returns InvalidArgument unless the rule's state can rest in the format.
absl::Status CheckFormat(const Rule& rule, StateFormat format);

// Whether a moment is an average of squares, which are never negative.
bool IsSquare(std::string_view moment_name);

// Returns the number of elements of a weight. InvalidArgument: a dimension is below 1, or the
// elements are too many to count their bytes.
absl::StatusOr<int64_t> CountElements(std::string_view name, const std::vector<int64_t>& shape);

// Returns InvalidArgument unless a weight or gradient may have this type.
absl::Status CheckValueType(DType dtype, const char* what, std::string_view name);

}  // namespace spillway::optim

#endif  // SPILLWAY_OPTIM_STATE_SPECS_H_
