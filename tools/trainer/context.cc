// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/context.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "spillway/engine.h"
#include "src/base/status_macros.h"
#include "tools/trainer/kernels/convert.h"

namespace spillway::trainer {
namespace {

constexpr int64_t kConvertGrain = 4096;  // elements

void Round(ThreadPool* pool, DType type, float* values, int64_t n) {
  if (type == DType::kF32) return;
  pool->ParallelRanges(n, kConvertGrain, [&](int64_t begin, int64_t end) {
    RoundTo(type, values + begin, end - begin);
  });
}

}  // namespace

void ModelContext::Bind(ScratchLayout& layout) {
  uint64_t largest = 0;  // elements
  for (size_t p = 0; p < parameters.size(); ++p) {
    const TensorSpec& spec = WeightSpec(p);
    if (spec.dtype != DType::kF32)
      largest = std::max(largest, spec.tile_bytes(0) / ElementBytes(spec.dtype));
  }
  if (largest > 0) weight_tile = layout.Take<float>(static_cast<int64_t>(largest));
}

absl::Status ModelContext::WithWeights(size_t parameter, uint64_t tile,
                                       const std::function<void(const float*)>& use) {
  SPILLWAY_ASSIGN_OR_RETURN(
      Lease lease, engine->Acquire({parameters[parameter].tensors.weight, tile}, Access::kRead));
  const DType type = WeightSpec(parameter).dtype;
  if (type == DType::kF32) {
    use(lease.as<float>().data());
    return absl::OkStatus();
  }
  const auto elements = static_cast<int64_t>(lease.size_bytes() / ElementBytes(type));
  pool->ParallelRanges(elements, kConvertGrain, [&](int64_t begin, int64_t end) {
    ToFloats(type, ElementAt(type, lease.data(), begin), end - begin, weight_tile + begin);
  });
  lease.Release();
  use(weight_tile);
  return absl::OkStatus();
}

void ModelContext::RoundActivations(float* values, int64_t n) const {
  Round(pool, ElementType(options.precision), values, n);
}

void ModelContext::RoundResidual(float* values, int64_t n) const {
  Round(pool, ResidualType(options.precision), values, n);
}

}  // namespace spillway::trainer
