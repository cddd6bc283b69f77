// SPDX-License-Identifier: Apache-2.0
//
// Reads and writes a tensor's bytes through pinned memory, a tile at a time. At most one tile is
// leased at any moment. An interrupt ends ReadBytes and ReadValues, and no other function here.

#ifndef SPILLWAY_OPTIM_TENSOR_BYTES_H_
#define SPILLWAY_OPTIM_TENSOR_BYTES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "absl/status/status.h"
#include "spillway/engine.h"

namespace spillway::optim {

// Calls visit(bytes, offset in the tensor) for each tile, in order, until a call fails.
absl::Status ForEachTile(
    Engine& engine, TensorId id, Access access,
    const std::function<absl::Status(std::span<std::byte> bytes, uint64_t offset)>& visit);

// Copy the tensor's bytes from `offset` on. OutOfRange: the tensor has fewer bytes.
absl::Status ReadBytes(Engine& engine, TensorId id, uint64_t offset, std::span<std::byte> out);
absl::Status WriteBytes(Engine& engine, TensorId id, uint64_t offset,
                        std::span<const std::byte> in);

// Reads the tensor's elements [first, first + values.size()) as fp32. InvalidArgument: the tensor
// is u8.
absl::Status ReadValues(Engine& engine, TensorId id, uint64_t first, std::span<float> values);

// Returns InvalidArgument for u8, which has no arithmetic.
absl::Status CheckIsNumber(const TensorSpec& spec);

}  // namespace spillway::optim

#endif  // SPILLWAY_OPTIM_TENSOR_BYTES_H_
