// SPDX-License-Identifier: Apache-2.0
//
// The weights of a model in full, as fp32, read in order without holding more than a tile: for
// hashing and export. They are its master weights, under compact state joined from two tensors, and
// of a parameter without one its weight.

#ifndef SPILLWAY_TOOLS_TRAINER_MASTER_WEIGHTS_H_
#define SPILLWAY_TOOLS_TRAINER_MASTER_WEIGHTS_H_

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spillway/engine.h"
#include "tools/trainer/model.h"

namespace spillway::trainer {

// Calls `consume` with the fp32 bytes of a parameter's weight, tile by tile from the first row on.
// Of a frozen parameter in 16 bits they are those of its weight. Fails as the engine does,
// or with what `consume` returns.
absl::Status ReadMasterWeight(
    Engine* engine, const Parameter& parameter,
    const std::function<absl::Status(std::span<const std::byte>)>& consume);

// XXH3-128 in hexadecimal over all parameters in ascending order of their names. Of each: the
// name's length and bytes, the number of dimensions, the dimensions, then the weight's fp32
// bytes; integers are 64-bit, everything little-endian. Independent of precision, tiles, budgets
// and page size.
absl::StatusOr<std::string> HashWeights(Engine* engine, const std::vector<Parameter>& parameters);

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_MASTER_WEIGHTS_H_
