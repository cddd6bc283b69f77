// SPDX-License-Identifier: Apache-2.0
//
// The synthetic trainer's kernels: closures on the host device, CUDA kernels on a GPU.

#ifndef SPILLWAY_TESTS_ENGINE_SYNTHETIC_KERNELS_H_
#define SPILLWAY_TESTS_ENGINE_SYNTHETIC_KERNELS_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "spillway/engine.h"
#include "tests/engine/synthetic_pattern.h"

namespace spillway::test {

class SyntheticKernels {
 public:
  virtual ~SyntheticKernels() = default;
  virtual absl::Status Launch(Stream& stream, const TileWork& work) = 0;
  // Returns the number of bytes that did not match, for kernels whose streams were synchronised.
  virtual absl::StatusOr<uint64_t> WrongBytes() = 0;
};

// Does the work on the calling thread. Returns the number of bytes that did not match.
uint64_t RunOnHost(const TileWork& work);

// Returns Unimplemented for a GPU in a build without CUDA.
absl::StatusOr<std::unique_ptr<SyntheticKernels>> MakeSyntheticKernels(Device device);
// Defined in synthetic_kernels_cuda.cc, in builds with CUDA.
absl::StatusOr<std::unique_ptr<SyntheticKernels>> MakeCudaKernels(int index);

}  // namespace spillway::test

#endif  // SPILLWAY_TESTS_ENGINE_SYNTHETIC_KERNELS_H_
