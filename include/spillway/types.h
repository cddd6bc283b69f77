// SPDX-License-Identifier: Apache-2.0
//
// The value types of the public interface: sizes, element types, tiers, roles, and the description
// of a tensor. They have no behaviour beyond arithmetic on their values.

#ifndef SPILLWAY_TYPES_H_
#define SPILLWAY_TYPES_H_

#include <algorithm>
#include <array>
#include <compare>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "spillway/export.h"

namespace spillway {

inline constexpr uint64_t kKiB = uint64_t{1} << 10;
inline constexpr uint64_t kMiB = uint64_t{1} << 20;
inline constexpr uint64_t kGiB = uint64_t{1} << 30;

// A budget without a limit: as much as the machine (or the file system) has.
inline constexpr uint64_t kUnlimited = std::numeric_limits<uint64_t>::max();

// Element types. The engine only stores and moves the elements; it never computes on them.
enum class DType : uint8_t { kF32, kF16, kBF16, kU8 };

// Bytes of one element.
constexpr uint64_t ElementBytes(DType dtype) {
  switch (dtype) {
    case DType::kF32: return 4;
    case DType::kF16:
    case DType::kBF16: return 2;
    case DType::kU8: return 1;
  }
  return 0;
}

// Where bytes are held. "Pinned" is page-locked host memory.
enum class Tier : uint8_t { kDevice, kPinned, kNvme };
inline constexpr int kNumTiers = 3;

// What a tensor is for. The role does not affect the values of the tensor's bytes. Statistics are
// kept by role, and EngineOptions::placement is given by role.
enum class Role : uint8_t { kParameter, kGradient, kMasterWeight, kMoment, kActivation };
inline constexpr int kNumRoles = 5;

// For each Role, the tier where its tiles rest: where a tile is while it is not leased and no lease
// of it is near. If a role has none, the engine's policy decides where its tiles are.
//
//   kDevice  Register gives each tile a reserved frame on the device, which the tile keeps. When a
//            lease in pinned memory ends, the bytes move back at once.
//   kPinned  Register gives each tile a reserved frame in pinned memory, which the tile keeps. When
//            a lease on the device ends, the bytes move back at once, and no copy stays on the
//            device.
//   kNvme    When a lease ends, the tile leaves memory at once. If it was modified, it is written
//            to NVMe first. It is brought in ahead of its next use, as every tile is.
//
// So a tile that rests on the device or in pinned memory is read from NVMe at most once, if an
// earlier run stored it, and only commits write it there. The budgets must hold all tiles of such
// roles at once. Discarded tiles count too, because they keep their frames. The computed numbers do
// not depend on the placement.
using Placement = std::array<std::optional<Tier>, kNumRoles>;

// What the holder of a lease does with the bytes.
//   kRead        reads; must not write.
//   kWrite       writes some of the bytes; the others keep their values.
//   kReadWrite   reads and writes.
//   kDiscard     writes every byte before it reads any: the previous content is not brought in, and
//                the bytes start undefined.
enum class Access : uint8_t { kRead, kWrite, kReadWrite, kDiscard };
constexpr bool Writes(Access access) { return access != Access::kRead; }

// Lower-case names for messages and logs: "f32", "device", "parameter", "read".
SPILLWAY_EXPORT std::string_view Name(DType dtype);
SPILLWAY_EXPORT std::string_view Name(Tier tier);
SPILLWAY_EXPORT std::string_view Name(Role role);
SPILLWAY_EXPORT std::string_view Name(Access access);

// Identifies a tensor of one engine. Valid for that engine's lifetime; ids are dense from zero.
struct TensorId {
  uint32_t value = std::numeric_limits<uint32_t>::max();
  friend auto operator<=>(const TensorId&, const TensorId&) = default;
};

// The description of a tensor, which is row-major and dense.
//
// A tensor is leased and moved in *tiles*. A tile is a run of `tile_rows` rows (of the first
// dimension), which is contiguous. If `tile_rows` is zero, the whole tensor is one tile. Budgets
// must hold the tiles that are leased together, not the whole tensor.
struct SPILLWAY_EXPORT TensorSpec {
  std::string name;  // unique in an engine; 1 to 512 bytes
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // every dimension is at least 1; empty: a scalar
  Role role = Role::kParameter;
  int64_t tile_rows = 0;   // 0: the tensor is one tile; else at least 1
  bool transient = false;  // never committed: gradients, activations

  uint64_t num_rows() const;    // the first dimension; 1 for a scalar
  uint64_t row_bytes() const;   // bytes of one row
  uint64_t size_bytes() const;  // bytes of the tensor
  uint64_t num_tiles() const;
  uint64_t tile_offset_bytes(uint64_t tile) const;  // where the tile begins in the tensor
  uint64_t tile_bytes(uint64_t tile) const;         // bytes of the tile; the last may be shorter

  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

// One tile of one tensor. A TensorId converts to the tensor's first tile.
struct TileRef {
  TensorId tensor;
  uint32_t tile = 0;

  TileRef() = default;
  // An index above 2^32 - 1 becomes 2^32 - 1, which is past the last tile of every tensor.
  TileRef(TensorId tensor_id, uint64_t tile_index = 0)  // NOLINT(google-explicit-constructor)
      : tensor(tensor_id),
        tile(static_cast<uint32_t>(
            std::min<uint64_t>(tile_index, std::numeric_limits<uint32_t>::max()))) {}
  friend auto operator<=>(const TileRef&, const TileRef&) = default;
};

}  // namespace spillway

#endif  // SPILLWAY_TYPES_H_
