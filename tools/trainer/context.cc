// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/context.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "spillway/engine.h"
#include "tools/hf/status_macros.h"
#include "tools/trainer/kernels/convert.h"

namespace spillway::trainer {
namespace {

constexpr int64_t kConvertGrain = 4096;  // elements

}  // namespace

void ModelContext::Bind(ScratchLayout& layout) {
  if (!amp()) return;
  uint64_t largest = 0;
  for (size_t p = 0; p < parameters.size(); ++p)
    largest = std::max(largest, WeightSpec(p).tile_bytes(0));
  weight_tile = layout.Take<float>(static_cast<int64_t>(largest / sizeof(uint16_t)));
}

absl::Status ModelContext::WithWeights(size_t parameter, uint64_t tile,
                                       const std::function<void(const float*)>& use) {
  SPILLWAY_HF_ASSIGN_OR_RETURN(
      Lease lease, tiles->Acquire({parameters[parameter].tensors.weight, tile}, Access::kRead));
  if (!amp()) {
    use(lease.as<float>().data());
    return absl::OkStatus();
  }
  const auto halves = lease.as<uint16_t>();
  pool->ParallelRanges(static_cast<int64_t>(halves.size()), kConvertGrain,
                       [&](int64_t begin, int64_t end) {
                         HalvesToFloats(halves.data() + begin, end - begin, weight_tile + begin);
                       });
  lease.Release();
  use(weight_tile);
  return absl::OkStatus();
}

void ModelContext::RoundActivations(float* values, int64_t n) const {
  if (!amp()) return;
  pool->ParallelRanges(n, kConvertGrain, [&](int64_t begin, int64_t end) {
    RoundToHalves(values + begin, end - begin);
  });
}

}  // namespace spillway::trainer
