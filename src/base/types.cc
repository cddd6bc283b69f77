// SPDX-License-Identifier: Apache-2.0

#include "spillway/types.h"

#include <algorithm>

namespace spillway {

std::string_view Name(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "f32";
    case DType::kF16: return "f16";
    case DType::kBF16: return "bf16";
    case DType::kU8: return "u8";
  }
  return "unknown";
}

std::string_view Name(Tier tier) {
  switch (tier) {
    case Tier::kDevice: return "device";
    case Tier::kPinned: return "pinned";
    case Tier::kNvme: return "nvme";
  }
  return "unknown";
}

std::string_view Name(Role role) {
  switch (role) {
    case Role::kParameter: return "parameter";
    case Role::kGradient: return "gradient";
    case Role::kMasterWeight: return "master_weight";
    case Role::kMoment: return "moment";
    case Role::kActivation: return "activation";
  }
  return "unknown";
}

std::string_view Name(Access access) {
  switch (access) {
    case Access::kRead: return "read";
    case Access::kWrite: return "write";
    case Access::kReadWrite: return "read-write";
    case Access::kDiscard: return "discard";
  }
  return "unknown";
}

uint64_t TensorSpec::num_rows() const {
  return shape.empty() ? 1 : static_cast<uint64_t>(shape[0]);
}

uint64_t TensorSpec::row_bytes() const {
  uint64_t bytes = ElementBytes(dtype);
  for (size_t i = 1; i < shape.size(); ++i) bytes *= static_cast<uint64_t>(shape[i]);
  return bytes;
}

uint64_t TensorSpec::size_bytes() const { return num_rows() * row_bytes(); }

uint64_t TensorSpec::num_tiles() const {
  if (tile_rows <= 0) return 1;
  const auto rows = static_cast<uint64_t>(tile_rows);
  return (num_rows() + rows - 1) / rows;
}

uint64_t TensorSpec::tile_offset_bytes(uint64_t tile) const {
  return tile_rows <= 0 ? 0 : tile * static_cast<uint64_t>(tile_rows) * row_bytes();
}

uint64_t TensorSpec::tile_bytes(uint64_t tile) const {
  if (tile_rows <= 0) return size_bytes();
  const auto rows = static_cast<uint64_t>(tile_rows);
  return std::min(rows, num_rows() - tile * rows) * row_bytes();
}

}  // namespace spillway
