// SPDX-License-Identifier: Apache-2.0
//
// A Device without a GPU: closures on a stream of the engine's host device run each kernel thread
// by thread on the emulator (src/simt/emulated_block.h), which reports what a GPU would not, and
// evaluate each product from its call. So the trainer's path through a GPU runs on any machine, as
// one runs ahead of the other there. It is slow, and says nothing of a GPU's speed or its bits.

#ifndef SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_EMULATED_DEVICE_H_
#define SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_EMULATED_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spillway/stream.h"
#include "spillway/types.h"
#include "src/simt/emulated_block.h"
#include "tools/trainer/compute/gpu/device.h"
#include "tools/trainer/compute/gpu/product_call.h"

namespace spillway::trainer::gpu {

// D = op(A)·op(B), or added to D, as the library's guide defines a call: sums in fp32, in the order
// of k, and one rounding. The addresses are of host memory.
void EvaluateProduct(const ProductCall& call, const void* a, const void* b, void* d);

class EmulatedDevice final : public Device {
 public:
  // What a GPU may have and lack.
  struct Limits {
    uint64_t free_bytes = kUnlimited;
    int64_t launches = INT64_MAX;  // after which the device is lost
    std::string name = "an emulated GPU";
    DeviceRates rates = {};  // that it tells
  };
  // `seed`: of the order in which blocks and threads run. Memory is taken with all bits set: as
  // numbers, NaN.
  explicit EmulatedDevice(uint64_t seed) : EmulatedDevice(seed, Limits()) {}
  EmulatedDevice(uint64_t seed, const Limits& limits) : seed_(seed), limits_(limits) {}
  ~EmulatedDevice() override;

  spillway::Device tier() const override { return spillway::Device::Host(); }
  ComputedBy computed_by() const override;
  absl::StatusOr<uint64_t> FreeBytes() override;
  DeviceRates MeasureRates(DType /*operands*/) override { return limits_.rates; }
  absl::Status Choose(const ProductCall& call) override;
  void Use(std::unique_ptr<Stream> stream) override { stream_ = std::move(stream); }
  Stream* stream() override { return stream_.get(); }
  absl::StatusOr<std::byte*> Allocate(uint64_t size_bytes) override;
  absl::StatusOr<std::byte*> AllocateHost(uint64_t size_bytes) override;
  absl::Status CopyToDevice(const void* from, uint64_t size_bytes, std::byte* to) override;
  absl::Status CopyToHost(const std::byte* from, uint64_t size_bytes, void* to) override;

#define SPILLWAY_DEFINE_LAUNCH(kernel) absl::Status Launch(const kernel& arguments) override;
  SPILLWAY_TRAINER_KERNELS(SPILLWAY_DEFINE_LAUNCH)
#undef SPILLWAY_DEFINE_LAUNCH

  absl::Status Multiply(const ProductCall& call, const void* a, const void* b, void* d) override;
  // Internal names what the emulator reported of a kernel.
  absl::Status Synchronize() override;

  int64_t waits() const override { return waits_; }

  // Which products were launched.
  const std::set<ProductCall>& products() const { return products_; }

 private:
  struct Freed {
    void operator()(std::byte* memory) const;
  };

  template <class Kernel>
  absl::Status Run(const char* name, const Kernel& kernel);
  absl::Status LaunchWork(std::function<void()> work);

  const uint64_t seed_;
  const Limits limits_;
  std::unique_ptr<Stream> stream_;
  std::vector<std::unique_ptr<std::byte, Freed>> memory_;
  uint64_t taken_bytes_ = 0;
  int64_t launches_ = 0;
  int64_t waits_ = 0;
  std::set<ProductCall> chosen_;
  std::set<ProductCall> products_;

  // Used on the stream's thread; by others after a Synchronize.
  std::unique_ptr<simt::Emulator> emulator_;
  std::string report_;  // the first
};

}  // namespace spillway::trainer::gpu

#endif  // SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_EMULATED_DEVICE_H_
