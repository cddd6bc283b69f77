// SPDX-License-Identifier: Apache-2.0
//
// The build defines SPILLWAY_HAS_CUDA.

#include "src/optim/device_update.h"

#include <cstring>

#include "src/base/default_floats.h"
#include "src/optim/device_update_cuda.h"

namespace spillway::optim {
namespace {

// Returns the row that follows a row of encoded state.
FusedRun NextRow(FusedRun run) {
  const auto elements = static_cast<uint64_t>(run.num_elements);
  run.first_element += elements;
  run.gradient =
      static_cast<const std::byte*>(run.gradient) + elements * ElementBytes(run.gradient_dtype);
  if (run.master != nullptr) run.master += elements;
  if (run.weight != nullptr)
    run.weight = static_cast<std::byte*>(run.weight) + elements * ElementBytes(run.weight_dtype);
  run.encoded.row += run.encoded.layout.size_bytes();
  return run;
}

}  // namespace

bool HasKernels(const Rule& rule) { return rule.kind == RuleKind::kAdamW && !rule.amsgrad; }

absl::Status LaunchUpdate([[maybe_unused]] Device device, Stream* stream,
                          const RuleFactors& factors, const FusedRun& first_row, int64_t rows) {
#if SPILLWAY_HAS_CUDA
  if (device.kind() == Device::Kind::kCuda)
    return LaunchUpdateOnCuda(device.index(), stream->native_handle(), factors, first_row, rows);
#endif
  return stream->Launch([factors, first_row, rows] {
    const base::DefaultFloats floats;
    FusedRun run = first_row;
    for (int64_t row = 0; row < rows; ++row, run = NextRow(run)) UpdateFused(factors, run);
  });
}

absl::Status LaunchNan([[maybe_unused]] Device device, Stream* stream, std::byte* from,
                       uint64_t size_bytes) {
#if SPILLWAY_HAS_CUDA
  if (device.kind() == Device::Kind::kCuda)
    return LaunchNanOnCuda(device.index(), stream->native_handle(), from, size_bytes);
#endif
  return stream->Launch([from, size_bytes] { std::memset(from, 0xFF, size_bytes); });
}

}  // namespace spillway::optim
