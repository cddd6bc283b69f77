// SPDX-License-Identifier: Apache-2.0
//
// The seam below GpuCompute: what it needs of a GPU. It is opened, and gets its memory and its
// algorithms, before an engine takes what is left of the GPU's memory. Then all work goes onto one
// stream of that engine, in the order of the calls, and the caller runs ahead of it. CudaDevice is
// a GPU; EmulatedDevice runs the same kernels and the same products on the engine's host device.

#ifndef SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_DEVICE_H_
#define SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spillway/stream.h"
#include "spillway/types.h"
#include "tools/trainer/compute/computed_by.h"
#include "tools/trainer/compute/gpu/kernels.h"
#include "tools/trainer/compute/gpu/product_call.h"

namespace spillway::trainer::gpu {

// What a GPU reaches, per second. 0: it says nothing here.
struct DeviceRates {
  double flops = 0;        // of a large square product
  double copy = 0;         // bytes that a copy within its memory reads and writes
  double from_pinned = 0;  // bytes that are copied from pinned memory, in one direction at a time
  double to_pinned = 0;
};

// Thread-compatible. The destructor waits for the work that was launched, and frees the memory.
// After the device was lost, every call that needs it returns Aborted.
class Device {
 public:
  virtual ~Device() = default;

  // --- Before an engine opens ---

  // Where the engine's device tier must lie: on this GPU, or on the host if it is emulated.
  virtual spillway::Device tier() const = 0;
  virtual ComputedBy computed_by() const = 0;
  // The device's memory that nothing has taken yet; kUnlimited: nothing limits it but the host's.
  virtual absl::StatusOr<uint64_t> FreeBytes() = 0;
  // Measures for about a second, with products of such operands. Takes up to 1 GiB meanwhile.
  virtual DeviceRates MeasureRates(DType operands) = 0;
  // Chooses the algorithm of a product, unless it has one. Unimplemented: there is none.
  virtual absl::Status Choose(const ProductCall& call) = 0;
  // Allocates memory of the device, aligned to 256 bytes, and host memory for copies. It lasts as
  // long as this object. ResourceExhausted if there is no room.
  virtual absl::StatusOr<std::byte*> Allocate(uint64_t size_bytes) = 0;
  virtual absl::StatusOr<std::byte*> AllocateHost(uint64_t size_bytes) = 0;

  // --- On an engine's stream ---

  // Takes the stream on which everything below runs. Called once.
  virtual void Use(std::unique_ptr<Stream> stream) = 0;
  // Leases that the work uses are taken on it; null before Use.
  virtual Stream* stream() = 0;

  // Copies between the device and memory of AllocateHost, which must stay as it is, or is not
  // defined, until Synchronize returns. From other host memory the call may wait.
  virtual absl::Status CopyToDevice(const void* from, uint64_t size_bytes, std::byte* to) = 0;
  virtual absl::Status CopyToHost(const std::byte* from, uint64_t size_bytes, void* to) = 0;

  // Launches each kernel of kernels.h.
#define SPILLWAY_DECLARE_LAUNCH(kernel) virtual absl::Status Launch(const kernel&) = 0;
  SPILLWAY_TRAINER_KERNELS(SPILLWAY_DECLARE_LAUNCH)
#undef SPILLWAY_DECLARE_LAUNCH

  // Launches a product. The addresses are those of the first elements of call.a, call.b and call.d.
  // Chooses its algorithm if that was not done before.
  virtual absl::Status Multiply(const ProductCall& call, const void* a, const void* b, void* d) = 0;

  // Waits until everything that was launched has run, and returns the first failure.
  virtual absl::Status Synchronize() = 0;
  // How often it has waited.
  virtual int64_t waits() const = 0;
};

}  // namespace spillway::trainer::gpu

#endif  // SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_DEVICE_H_
