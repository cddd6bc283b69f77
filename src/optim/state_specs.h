// SPDX-License-Identifier: Apache-2.0
//
// The names of a rule's moments, and checks of a parameter's format, shape and types. The other
// functions of state_specs.cc are public: spillway/optimizer.h.

#ifndef SPILLWAY_OPTIM_STATE_SPECS_H_
#define SPILLWAY_OPTIM_STATE_SPECS_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spillway/optimizer.h"
#include "src/optim/block_codec.h"

namespace spillway::optim {

// Returns the names of the rule's moments in the order of its state tensors. They are PyTorch's,
// except for the variance of a centered RMSprop (grad_var). Those of Adafactor depend on whether
// the weight is factored.
std::vector<std::string_view> MomentNames(const Rule& rule, bool is_factored = false);

// Returns the place of a moment in RuleRun::moments, which does not depend on which other moments
// the rule has.
size_t SlotOf(RuleKind kind, std::string_view moment_name);

// Whether v is kept as means over the rows and columns of the weight's matrices. Adafactor keeps it
// so from two dimensions on.
bool IsFactored(const Rule& rule, const std::vector<int64_t>& shape);

// Returns InvalidArgument unless an optimizer of the rule can have the format.
absl::Status CheckFormat(const Rule& rule, StateFormat format);

// Returns the name that keys the random rounding of moment `m` in compact state. Signed and
// unsigned moments round with different bits of an element's random word. A second moment of either
// kind has words of its own.
std::string KeyingNameOf(const std::vector<std::string_view>& moments, size_t m,
                         std::string_view tensor_name);

// Returns how the encoded formats keep a moment: averages of squares are never negative, and the
// largest of them so far only grows.
CodeMap MapOf(std::string_view moment_name);

// Returns the number of elements of a weight. InvalidArgument: a dimension is below 1, or the
// elements are too many to count their bytes.
absl::StatusOr<int64_t> CountElements(std::string_view name, const std::vector<int64_t>& shape);

// Returns InvalidArgument unless a weight or gradient may have this type.
absl::Status CheckValueType(DType dtype, const char* what, std::string_view name);

}  // namespace spillway::optim

#endif  // SPILLWAY_OPTIM_STATE_SPECS_H_
