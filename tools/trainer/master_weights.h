// SPDX-License-Identifier: Apache-2.0
//
// Reads the full-precision weights of a model as fp32, in order and a tile at a time, for hashing
// and export. These are the master weights; under compact state they are joined from two tensors.
// The weight itself is read for a parameter that has no master weight.

#ifndef SPILLWAY_TOOLS_TRAINER_MASTER_WEIGHTS_H_
#define SPILLWAY_TOOLS_TRAINER_MASTER_WEIGHTS_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spillway/engine.h"
#include "tools/trainer/model.h"

namespace spillway::trainer {

// Returns how many tiles of `rest`, the compact state of `weight`, lie in each tile of the weight
// but the last, which may have fewer. 0: some tile of `rest` lies in two of the weight's.
uint64_t RestTilesPerTile(const TensorSpec& weight, const TensorSpec& rest);

// Calls `consume` with the fp32 bytes of a parameter's weight, tile by tile from the first row on.
// The weight of a frozen 16-bit parameter is converted to fp32. Returns errors of the engine and of
// `consume`.
absl::Status ReadMasterWeight(
    Engine* engine, const Parameter& parameter,
    const std::function<absl::Status(std::span<const std::byte>)>& consume);

// Returns the XXH3-128 hash, in hexadecimal, of all parameters in ascending order of their names.
// Each parameter adds its name's length and bytes, the number of dimensions, the dimensions, then
// the weight's fp32 bytes. Integers are 64-bit, and everything is little-endian. The hash of equal
// weights does not depend on precision, tiles, budgets or page size.
absl::StatusOr<std::string> HashWeights(Engine* engine, const std::vector<Parameter>& parameters);

}  // namespace spillway::trainer

#endif  // SPILLWAY_TOOLS_TRAINER_MASTER_WEIGHTS_H_
