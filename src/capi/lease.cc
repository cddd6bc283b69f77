// SPDX-License-Identifier: Apache-2.0

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "spillway/engine.h"
#include "src/base/status_macros.h"
#include "src/capi/calls.h"
#include "src/capi/dlpack.h"
#include "src/capi/handles.h"

namespace spillway::capi {
namespace {

absl::Status CheckStream(const spw_stream* stream, const std::shared_ptr<Engine>& engine) {
  if (stream == nullptr || stream->engine == engine) return absl::OkStatus();
  return absl::InvalidArgumentError("the stream is another engine's");
}

absl::Status Take(spw_engine* engine, TileRef tile, Tier tier, int32_t access, spw_stream* stream,
                  spw_lease** out) {
  SPILLWAY_RETURN_IF_ERROR(CheckNotNull(out, "lease"));
  auto how = Access::kRead;
  SPILLWAY_RETURN_IF_ERROR(ToEnum(access, Access::kDiscard, "access", &how));
  SPILLWAY_RETURN_IF_ERROR(CheckStream(stream, engine->engine));
  auto handle = std::make_unique<spw_lease>();
  handle->engine = engine->engine;
  handle->tile = tile;
  handle->tier = tier;
  handle->device = engine->device;
  if (stream != nullptr) handle->stream = stream->stream;
  if (tier == Tier::kDevice) {
    SPILLWAY_ASSIGN_OR_RETURN(handle->lease,
                              engine->engine->Acquire(tile, how, handle->stream.get()));
  } else {
    SPILLWAY_ASSIGN_OR_RETURN(handle->lease, engine->engine->AcquireHost(tile, how));
  }
  *out = handle.release();
  return absl::OkStatus();
}

// A DLPack tensor and the lease that it owns.
struct Managed {
  DLManagedTensor tensor = {};
  std::vector<int64_t> shape;
  std::unique_ptr<spw_lease> lease;
};

DLDataType TypeOf(DType dtype) {
  const auto bits = static_cast<uint8_t>(8 * ElementBytes(dtype));
  switch (dtype) {
    case DType::kF32:
    case DType::kF16: return {kDLFloat, bits, 1};
    case DType::kBF16: return {kDLBfloat, bits, 1};
    case DType::kU8: return {kDLUInt, bits, 1};
  }
  return {};
}

// Returns the shape of the tile: its number of rows, then the other dimensions of the tensor.
std::vector<int64_t> ShapeOf(const TensorSpec& spec, uint64_t tile) {
  std::vector<int64_t> shape = spec.shape;
  if (!shape.empty())
    shape.front() = static_cast<int64_t>(spec.tile_bytes(tile) / spec.row_bytes());
  return shape;
}

}  // namespace
}  // namespace spillway::capi

using namespace spillway;        // NOLINT(google-build-using-namespace): for the calls below
using namespace spillway::capi;  // NOLINT(google-build-using-namespace)

extern "C" {

spw_status* spw_acquire(spw_engine* engine, uint32_t id, uint64_t tile, int32_t access,
                        spw_stream* stream, spw_lease** lease) {
  return With(engine, [&](Engine& in) -> absl::Status {
    SPILLWAY_ASSIGN_OR_RETURN(const TileRef ref, TileOf(in, id, tile));
    return Take(engine, ref, Tier::kDevice, access, stream, lease);
  });
}

spw_status* spw_acquire_host(spw_engine* engine, uint32_t id, uint64_t tile, int32_t access,
                             spw_stream* stream, spw_lease** lease) {
  return With(engine, [&](Engine& in) -> absl::Status {
    SPILLWAY_ASSIGN_OR_RETURN(const TileRef ref, TileOf(in, id, tile));
    return Take(engine, ref, Tier::kPinned, access, stream, lease);
  });
}

void* spw_lease_data(const spw_lease* lease) {
  return lease != nullptr ? lease->lease.data() : nullptr;
}

uint64_t spw_lease_size_bytes(const spw_lease* lease) {
  return lease != nullptr ? lease->lease.size_bytes() : 0;
}

void spw_lease_release(spw_lease* lease, spw_stream* stream) {
  if (lease == nullptr) return;
  lease->lease.Release(stream != nullptr ? stream->stream.get() : lease->stream.get());
  delete lease;
}

spw_status* spw_lease_dlpack(spw_lease* lease, DLManagedTensor** tensor) {
  return spw_lease_dlpack_on(lease, nullptr, tensor);
}

spw_status* spw_lease_dlpack_on(spw_lease* lease, spw_stream* stream, DLManagedTensor** tensor) {
  return Run([&]() -> absl::Status {
    SPILLWAY_RETURN_IF_ERROR(CheckNotNull(lease, "lease"));
    SPILLWAY_RETURN_IF_ERROR(CheckNotNull(tensor, "tensor"));
    SPILLWAY_RETURN_IF_ERROR(lease->engine->CheckProcess());
    SPILLWAY_RETURN_IF_ERROR(CheckStream(stream, lease->engine));
    const bool is_same_stream = stream != nullptr && stream->stream == lease->stream;
    if (lease->stream != nullptr && !is_same_stream)
      SPILLWAY_RETURN_IF_ERROR(lease->stream->Synchronize());
    const TensorSpec& spec = lease->engine->Spec(lease->tile.tensor);
    auto managed = std::make_unique<Managed>();
    managed->shape = ShapeOf(spec, lease->tile.tile);
    const bool is_cuda =
        lease->tier == Tier::kDevice && lease->device.kind() == Device::Kind::kCuda;
    DLTensor& as = managed->tensor.dl_tensor;
    as.data = lease->lease.data();
    as.device = {is_cuda ? kDLCUDA : kDLCPU, is_cuda ? lease->device.index() : 0};
    as.ndim = static_cast<int32_t>(managed->shape.size());
    as.dtype = TypeOf(spec.dtype);
    as.shape = managed->shape.data();
    managed->tensor.manager_ctx = managed.get();
    managed->tensor.deleter = [](DLManagedTensor* self) {
      const std::unique_ptr<Managed> owned(static_cast<Managed*>(self->manager_ctx));
      spw_lease_release(owned->lease.release(), nullptr);
    };
    managed->lease.reset(lease);
    if (stream != nullptr) lease->stream = stream->stream;  // on which the lease will end
    *tensor = &managed.release()->tensor;
    return absl::OkStatus();
  });
}

}  // extern "C"
