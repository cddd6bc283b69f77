// SPDX-License-Identifier: Apache-2.0
//
// What a rule's state is called, and checks of what a parameter is. The rest of state_specs.cc is
// public: spillway/optimizer.h.

#ifndef SPILLWAY_OPTIM_STATE_SPECS_H_
#define SPILLWAY_OPTIM_STATE_SPECS_H_

#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spillway/optimizer.h"

namespace spillway::optim {

// The rule's state tensors, in the order in which the kernels take them; PyTorch's names. Those of
// Adafactor depend on whether the weight is factored.
std::vector<std::string_view> MomentNames(const Rule& rule, bool is_factored = false);

// Whether Adafactor keeps means over the rows and columns of the weight's matrices for v: from two
// dimensions on.
bool IsFactored(const Rule& rule, const std::vector<int64_t>& shape);

// InvalidArgument unless the pair exists.
absl::Status CheckFormat(const Rule& rule, StateFormat format);

// Whether a moment is an average of squares, which are never negative.
bool IsSquare(std::string_view moment_name);

// Elements of a weight. InvalidArgument: a dimension below 1, or too many to count their bytes.
absl::StatusOr<int64_t> CountElements(std::string_view name, const std::vector<int64_t>& shape);

// InvalidArgument unless a weight or gradient may have this type.
absl::Status CheckValueType(DType dtype, const char* what, std::string_view name);

}  // namespace spillway::optim

#endif  // SPILLWAY_OPTIM_STATE_SPECS_H_
