// SPDX-License-Identifier: Apache-2.0
//
// C ABI: reads and writes bytes of a tensor, and computes on whole tensors. Arithmetic decodes one
// piece of the tensor at a time to fp32, and encodes it again if it changes it. A piece fits the
// first level of cache. Results do not depend on the caller's floating-point environment, as those
// of an update do not.

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>

#include "spillway/engine.h"
#include "src/base/default_floats.h"
#include "src/base/status_macros.h"
#include "src/capi/calls.h"
#include "src/capi/handles.h"
#include "src/optim/element_codecs.h"
#include "src/optim/sum_of_squares.h"
#include "src/optim/tensor_bytes.h"

namespace spillway::capi {
namespace {

constexpr int64_t kPieceElements = 1024;
using Piece = std::array<float, kPieceElements>;

// Returns the codec of the tensor's dtype. InvalidArgument if the tensor does not hold numbers.
absl::StatusOr<const optim::ElementCodec*> CodecOf(const Engine& engine, TensorId id) {
  SPILLWAY_RETURN_IF_ERROR(engine.CheckTile(id));
  SPILLWAY_RETURN_IF_ERROR(optim::CheckIsNumber(engine.Spec(id)));
  return &optim::CodecOf(engine.Spec(id).dtype);
}

// Calls visit(bytes, number of elements, index of the first element) for each piece of the tensor.
template <class Visit>
absl::Status ForEachPiece(Engine& engine, TensorId id, Access access, const Visit& visit) {
  const auto element_bytes = static_cast<int64_t>(ElementBytes(engine.Spec(id).dtype));
  return optim::ForEachTile(engine, id, access, [&](std::span<std::byte> tile, uint64_t offset) {
    const int64_t first = static_cast<int64_t>(offset) / element_bytes;
    const int64_t count = static_cast<int64_t>(tile.size()) / element_bytes;
    for (int64_t done = 0; done < count; done += kPieceElements) {
      visit(tile.data() + done * element_bytes, std::min(kPieceElements, count - done),
            first + done);
    }
    return absl::OkStatus();
  });
}

// Calls change(values, number of elements, index of the first element) for each piece, and stores
// the changed values, rounded to the tensor's dtype.
template <class Function>
absl::Status Change(Engine& engine, TensorId id, const Function& change) {
  SPILLWAY_ASSIGN_OR_RETURN(const optim::ElementCodec* const codec, CodecOf(engine, id));
  Piece values;
  return ForEachPiece(engine, id, Access::kReadWrite,
                      [&](std::byte* bytes, int64_t n, int64_t first) {
                        codec->decode(bytes, n, values.data());
                        change(values.data(), n, first);
                        codec->encode(values.data(), n, bytes);
                      });
}

// Calls visit(values, number of elements, index of the first element) for each piece. The tensor is
// only read.
template <class Visit>
absl::Status Look(Engine& engine, TensorId id, const Visit& visit) {
  SPILLWAY_ASSIGN_OR_RETURN(const optim::ElementCodec* const codec, CodecOf(engine, id));
  Piece values;
  return ForEachPiece(engine, id, Access::kRead,
                      [&](const std::byte* bytes, int64_t n, int64_t first) {
                        codec->decode(bytes, n, values.data());
                        visit(values.data(), n, first);
                      });
}

}  // namespace
}  // namespace spillway::capi

using namespace spillway;        // NOLINT(google-build-using-namespace): for the calls below
using namespace spillway::capi;  // NOLINT(google-build-using-namespace)

extern "C" {

spw_status* spw_read(spw_engine* engine, uint32_t id, uint64_t offset, void* out, uint64_t bytes) {
  return With(engine, [&](Engine& in) -> absl::Status {
    if (bytes > 0) SPILLWAY_RETURN_IF_ERROR(CheckNotNull(out, "out"));
    return optim::ReadBytes(in, TensorId{id}, offset, {static_cast<std::byte*>(out), bytes});
  });
}

spw_status* spw_write(spw_engine* engine, uint32_t id, uint64_t offset, const void* bytes_in,
                      uint64_t bytes) {
  return With(engine, [&](Engine& in) -> absl::Status {
    if (bytes > 0) SPILLWAY_RETURN_IF_ERROR(CheckNotNull(bytes_in, "bytes_in"));
    return optim::WriteBytes(in, TensorId{id}, offset,
                             {static_cast<const std::byte*>(bytes_in), bytes});
  });
}

spw_status* spw_add(spw_engine* engine, uint32_t id, const void* values, int32_t dtype,
                    double factor) {
  return With(engine, [&](Engine& in) -> absl::Status {
    SPILLWAY_RETURN_IF_ERROR(CheckNotNull(values, "values"));
    auto type = DType::kF32;
    SPILLWAY_RETURN_IF_ERROR(ToEnum(dtype, DType::kBF16, "dtype", &type));
    const optim::ElementCodec& codec = optim::CodecOf(type);
    const base::DefaultFloats floats;
    const auto times = static_cast<float>(factor);
    Piece added;
    return Change(in, TensorId{id}, [&](float* x, int64_t n, int64_t first) {
      const std::byte* const from = static_cast<const std::byte*>(values) +
                                    static_cast<uint64_t>(first) * codec.element_bytes;
      codec.decode(from, n, added.data());
      for (int64_t i = 0; i < n; ++i) x[i] += times * added[static_cast<size_t>(i)];
    });
  });
}

spw_status* spw_scale(spw_engine* engine, uint32_t id, double factor) {
  return With(engine, [&](Engine& in) {
    const base::DefaultFloats floats;
    const auto times = static_cast<float>(factor);
    return Change(in, TensorId{id}, [times](float* x, int64_t n, int64_t) {
      for (int64_t i = 0; i < n; ++i) x[i] *= times;
    });
  });
}

spw_status* spw_sum_of_squares(spw_engine* engine, uint32_t id, double* sum) {
  return With(engine, [&](Engine& in) -> absl::Status {
    SPILLWAY_RETURN_IF_ERROR(CheckNotNull(sum, "sum"));
    const base::DefaultFloats floats;
    optim::SumLanes lanes;
    SPILLWAY_RETURN_IF_ERROR(Look(in, TensorId{id}, [&](const float* x, int64_t n, int64_t first) {
      optim::AddSquares(x, n, static_cast<uint64_t>(first), &lanes);
    }));
    *sum = optim::Total(lanes);
    return absl::OkStatus();
  });
}

spw_status* spw_all_finite(spw_engine* engine, uint32_t id, int32_t* all_finite) {
  return With(engine, [&](Engine& in) -> absl::Status {
    SPILLWAY_RETURN_IF_ERROR(CheckNotNull(all_finite, "all_finite"));
    bool finite = true;
    SPILLWAY_RETURN_IF_ERROR(Look(in, TensorId{id}, [&](const float* x, int64_t n, int64_t) {
      for (int64_t i = 0; i < n; ++i) finite &= std::isfinite(x[i]);
    }));
    *all_finite = finite ? 1 : 0;
    return absl::OkStatus();
  });
}

}  // extern "C"
