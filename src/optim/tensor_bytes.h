// SPDX-License-Identifier: Apache-2.0
//
// A tensor's bytes, a tile at a time through pinned memory, of which one is leased at any moment.
// An interrupt ends reading alone.

#ifndef SPILLWAY_OPTIM_TENSOR_BYTES_H_
#define SPILLWAY_OPTIM_TENSOR_BYTES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "absl/status/status.h"
#include "spillway/engine.h"

namespace spillway::optim {

// Calls visit(bytes, offset in the tensor) for each tile, in order, until it fails.
absl::Status ForEachTile(
    Engine& engine, TensorId id, Access access,
    const std::function<absl::Status(std::span<std::byte> bytes, uint64_t offset)>& visit);

// OutOfRange: the tensor has fewer bytes.
absl::Status ReadBytes(Engine& engine, TensorId id, uint64_t offset, std::span<std::byte> out);
absl::Status WriteBytes(Engine& engine, TensorId id, uint64_t offset,
                        std::span<const std::byte> in);

// The tensor's elements [first, first + values.size()) in fp32. InvalidArgument: it is of bytes.
absl::Status ReadValues(Engine& engine, TensorId id, uint64_t first, std::span<float> values);

// InvalidArgument for u8, which has no arithmetic.
absl::Status CheckIsNumber(const TensorSpec& spec);

}  // namespace spillway::optim

#endif  // SPILLWAY_OPTIM_TENSOR_BYTES_H_
