// SPDX-License-Identifier: Apache-2.0

#include "tests/engine/synthetic_kernels.h"

#include <atomic>
#include <chrono>

namespace spillway::test {
namespace {

class HostKernels final : public SyntheticKernels {
 public:
  absl::Status Launch(Stream& stream, const TileWork& work) override {
    return stream.Launch([this, work] { wrong_bytes_ += RunOnHost(work); });
  }
  absl::StatusOr<uint64_t> WrongBytes() override { return wrong_bytes_.load(); }

 private:
  std::atomic<uint64_t> wrong_bytes_ = 0;
};

}  // namespace

uint64_t RunOnHost(const TileWork& work) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(work.microseconds);
  while (std::chrono::steady_clock::now() < end) {
  }
  uint64_t wrong_bytes = 0;
  for (uint64_t at = 0; at < work.size_bytes; ++at) {
    if (work.check && work.data[at] != PatternByte(work.expected, at)) ++wrong_bytes;
    if (work.write) work.data[at] = PatternByte(work.next, at);
  }
  return wrong_bytes;
}

absl::StatusOr<std::unique_ptr<SyntheticKernels>> MakeSyntheticKernels(Device device) {
  if (device.kind() == Device::Kind::kHost) return std::make_unique<HostKernels>();
#if SPILLWAY_HAS_CUDA
  return MakeCudaKernels(device.index());
#else
  return absl::UnimplementedError("this build has no CUDA kernels");
#endif
}

}  // namespace spillway::test
