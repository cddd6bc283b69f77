// SPDX-License-Identifier: Apache-2.0
//
// The words of the public contract as value types: sizes, element types, tiers, roles, and what a
// tensor is. No behaviour lives here beyond arithmetic on those values.

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

// Element types. Storage only: the engine moves bytes and never computes on them.
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

// Where bytes rest. "Pinned" is page-locked host memory.
enum class Tier : uint8_t { kDevice, kPinned, kNvme };
inline constexpr int kNumTiers = 3;

// What a tensor is for. Decides nothing about the values of its bytes; statistics are kept by role,
// and where tiles rest can be said by role.
enum class Role : uint8_t { kParameter, kGradient, kMasterWeight, kMoment, kActivation };
inline constexpr int kNumRoles = 5;

// By Role: the tier where its tiles rest, which is where they are while nobody leases them and no
// lease is near. None: wherever the engine's policy has them.
//
//   kDevice  A tile gets a frame of its own on the device with its first lease and keeps it. After
//            a lease in pinned memory its bytes come back at once.
//   kPinned  The same in pinned memory: after a lease on the device its bytes come back at once,
//            and nothing of it stays on the device.
//   kNvme    After each lease a tile leaves memory at once, by way of a write if it was written.
//            It comes ahead of its next use as every tile does.
//
// So a tile that rests on the device or in pinned memory comes from NVMe at most once, when an
// earlier run stored it, and is written there by commits alone; and budgets must hold all tiles of
// such roles at once, discarded ones too, as frames stay theirs. Numbers computed do not depend on
// it.
using Placement = std::array<std::optional<Tier>, kNumRoles>;

// What the holder of a lease does with the bytes.
//   kRead        reads; must not write.
//   kWrite       writes some bytes; those it leaves alone keep their value.
//   kReadWrite   reads and writes.
//   kDiscard     writes every byte before reading any: the previous content is not brought in and
//   the
//                bytes start undefined.
enum class Access : uint8_t { kRead, kWrite, kReadWrite, kDiscard };
constexpr bool Writes(Access access) { return access != Access::kRead; }

// "f32", "device", "parameter", "read": lower-case names for messages and logs.
SPILLWAY_EXPORT std::string_view Name(DType dtype);
SPILLWAY_EXPORT std::string_view Name(Tier tier);
SPILLWAY_EXPORT std::string_view Name(Role role);
SPILLWAY_EXPORT std::string_view Name(Access access);

// A tensor of one engine. Valid for that engine's lifetime; ids are dense from zero.
struct TensorId {
  uint32_t value = std::numeric_limits<uint32_t>::max();
  friend auto operator<=>(const TensorId&, const TensorId&) = default;
};

// What a tensor is: row-major and dense.
//
// A tensor is leased and moved by *tiles*: runs of `tile_rows` rows (of the first dimension), each
// contiguous. With `tile_rows` zero the tensor is one tile. Budgets must hold the tiles that are
// leased together, never the tensor.
struct SPILLWAY_EXPORT TensorSpec {
  std::string name;  // unique in an engine; 1 to 512 bytes
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // every dimension at least 1; empty is a scalar
  Role role = Role::kParameter;
  int64_t tile_rows = 0;   // 0: one tile; else at least 1
  bool transient = false;  // never committed: gradients, activations

  uint64_t num_rows() const;    // first dimension; 1 for a scalar
  uint64_t row_bytes() const;   // bytes of one row
  uint64_t size_bytes() const;  // bytes of the tensor
  uint64_t num_tiles() const;
  uint64_t tile_offset_bytes(uint64_t tile) const;  // first byte of a tile in the tensor
  uint64_t tile_bytes(uint64_t tile) const;         // the last tile may be shorter

  friend bool operator==(const TensorSpec&, const TensorSpec&) = default;
};

// One tile of one tensor; a TensorId alone means its first tile.
struct TileRef {
  TensorId tensor;
  uint32_t tile = 0;

  TileRef() = default;
  // No tensor has so many tiles that one past 2^32 - 1 is another than the last.
  TileRef(TensorId tensor_id, uint64_t tile_index = 0)  // NOLINT(google-explicit-constructor)
      : tensor(tensor_id),
        tile(static_cast<uint32_t>(
            std::min<uint64_t>(tile_index, std::numeric_limits<uint32_t>::max()))) {}
  friend auto operator<=>(const TileRef&, const TileRef&) = default;
};

}  // namespace spillway

#endif  // SPILLWAY_TYPES_H_
