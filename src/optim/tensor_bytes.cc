// SPDX-License-Identifier: Apache-2.0

#include "src/optim/tensor_bytes.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "src/base/interrupt.h"
#include "src/base/status_macros.h"
#include "src/optim/element_codecs.h"

namespace spillway::optim {
namespace {

// Calls visit(bytes in the tile, bytes before, number of bytes) for the part of each tile that lies
// in [offset, offset + bytes).
template <class Visit>
absl::Status ForEachPart(Engine& engine, TensorId id, uint64_t offset, uint64_t bytes, bool writes,
                         const Visit& visit) {
  SPILLWAY_RETURN_IF_ERROR(engine.CheckTile(id));
  const TensorSpec& spec = engine.Spec(id);
  if (offset > spec.size_bytes() || bytes > spec.size_bytes() - offset) {
    return absl::OutOfRangeError(absl::StrCat("tensor '", spec.name, "' has ", spec.size_bytes(),
                                              " bytes: ", bytes, " from ", offset,
                                              " on are past its end"));
  }
  for (uint64_t done = 0; done < bytes;) {
    const uint64_t at = offset + done;
    const uint64_t tile = at / spec.tile_bytes(0);
    const uint64_t begin = at - spec.tile_offset_bytes(tile);
    const uint64_t count = std::min(bytes - done, spec.tile_bytes(tile) - begin);
    const bool is_whole = count == spec.tile_bytes(tile);
    const Access access = !writes ? Access::kRead : is_whole ? Access::kDiscard : Access::kWrite;
    SPILLWAY_ASSIGN_OR_RETURN(const Lease lease, engine.AcquireHost({id, tile}, access));
    visit(lease.data() + begin, done, count);
    done += count;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ForEachTile(
    Engine& engine, TensorId id, Access access,
    const std::function<absl::Status(std::span<std::byte> bytes, uint64_t offset)>& visit) {
  const base::Uninterrupted whole;
  SPILLWAY_RETURN_IF_ERROR(engine.CheckTile(id));
  const TensorSpec& spec = engine.Spec(id);
  for (uint64_t tile = 0; tile < spec.num_tiles(); ++tile) {
    SPILLWAY_ASSIGN_OR_RETURN(const Lease lease, engine.AcquireHost({id, tile}, access));
    SPILLWAY_RETURN_IF_ERROR(visit(lease.as<std::byte>(), spec.tile_offset_bytes(tile)));
  }
  return absl::OkStatus();
}

absl::Status ReadBytes(Engine& engine, TensorId id, uint64_t offset, std::span<std::byte> out) {
  return ForEachPart(engine, id, offset, out.size(), /*writes=*/false,
                     [&](const std::byte* tile, uint64_t done, uint64_t count) {
                       std::memcpy(out.data() + done, tile, count);
                     });
}

absl::Status WriteBytes(Engine& engine, TensorId id, uint64_t offset,
                        std::span<const std::byte> in) {
  const base::Uninterrupted whole;
  return ForEachPart(engine, id, offset, in.size(), /*writes=*/true,
                     [&](std::byte* tile, uint64_t done, uint64_t count) {
                       std::memcpy(tile, in.data() + done, count);
                     });
}

absl::Status ReadValues(Engine& engine, TensorId id, uint64_t first, std::span<float> values) {
  SPILLWAY_RETURN_IF_ERROR(engine.CheckTile(id));
  const TensorSpec& spec = engine.Spec(id);
  SPILLWAY_RETURN_IF_ERROR(CheckIsNumber(spec));
  const ElementCodec& codec = CodecOf(spec.dtype);
  std::vector<std::byte> encoded(values.size() * codec.element_bytes);
  SPILLWAY_RETURN_IF_ERROR(ReadBytes(engine, id, first * codec.element_bytes, encoded));
  codec.decode(encoded.data(), static_cast<int64_t>(values.size()), values.data());
  return absl::OkStatus();
}

absl::Status CheckIsNumber(const TensorSpec& spec) {
  if (spec.dtype != DType::kU8) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("tensor '", spec.name,
                   "' is of bytes (u8), which have no arithmetic: f32, f16 "
                   "and bf16 have"));
}

}  // namespace spillway::optim
