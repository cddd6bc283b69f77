// SPDX-License-Identifier: Apache-2.0
//
// A Device for dry walks: computes nothing, and records what memory is allocated and which products
// are launched. Its addresses are as aligned as a device's, and nothing lies there.

#ifndef SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_PLANNING_DEVICE_H_
#define SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_PLANNING_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spillway/stream.h"
#include "spillway/types.h"
#include "tools/trainer/compute/gpu/device.h"
#include "tools/trainer/compute/gpu/product_call.h"

namespace spillway::trainer::gpu {

class PlanningDevice final : public Device {
 public:
  // What it records outlives it.
  struct Record {
    uint64_t device_bytes = 0;
    std::set<ProductCall> products;
  };
  explicit PlanningDevice(Record* record) : record_(record) {}

  spillway::Device tier() const override { return spillway::Device::Host(); }
  ComputedBy computed_by() const override { return {}; }
  absl::StatusOr<uint64_t> FreeBytes() override { return kUnlimited; }
  DeviceRates MeasureRates(DType /*operands*/) override { return {}; }
  void Use(std::unique_ptr<Stream> /*stream*/) override {}
  Stream* stream() override { return nullptr; }
  int64_t waits() const override { return 0; }

  absl::StatusOr<std::byte*> Allocate(uint64_t size_bytes) override {
    const uint64_t address = kFirstAddress + record_->device_bytes;
    record_->device_bytes += (size_bytes + kAlignment - 1) / kAlignment * kAlignment;
    return reinterpret_cast<std::byte*>(address);
  }
  absl::StatusOr<std::byte*> AllocateHost(uint64_t size_bytes) override {
    return host_memory_.emplace_back(size_bytes).data();
  }
  absl::Status CopyToDevice(const void* /*from*/, uint64_t /*size_bytes*/,
                            std::byte* /*to*/) override {
    return absl::OkStatus();
  }
  absl::Status CopyToHost(const std::byte* /*from*/, uint64_t /*size_bytes*/,
                          void* /*to*/) override {
    return absl::OkStatus();
  }

#define SPILLWAY_DEFINE_LAUNCH(kernel) \
  absl::Status Launch(const kernel& /*arguments*/) override { return absl::OkStatus(); }
  SPILLWAY_TRAINER_KERNELS(SPILLWAY_DEFINE_LAUNCH)
#undef SPILLWAY_DEFINE_LAUNCH

  absl::Status Choose(const ProductCall& call) override {
    record_->products.insert(call);
    return absl::OkStatus();
  }
  absl::Status Multiply(const ProductCall& call, const void* /*a*/, const void* /*b*/,
                        void* /*d*/) override {
    return Choose(call);
  }
  absl::Status Synchronize() override { return absl::OkStatus(); }

 private:
  static constexpr uint64_t kFirstAddress = uint64_t{1} << 40;
  static constexpr uint64_t kAlignment = 256;

  Record* const record_;
  std::vector<std::vector<std::byte>> host_memory_;
};

}  // namespace spillway::trainer::gpu

#endif  // SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_PLANNING_DEVICE_H_
