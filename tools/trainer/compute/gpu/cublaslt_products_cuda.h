// SPDX-License-Identifier: Apache-2.0
//
// Runs products on a CUDA stream. The algorithm of each shape is chosen once, before the engine
// takes its memory, and from then on serves that shape. The same library on the same GPU then gives
// the same bits whatever the budgets are (cuBLAS guide, 2.1.4), because nothing about a product but
// its addresses differs from run to run.

#ifndef SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_CUBLASLT_PRODUCTS_CUDA_H_
#define SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_CUBLASLT_PRODUCTS_CUDA_H_

#include <cublasLt.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/trainer/compute/gpu/cublaslt_descriptors_cuda.h"
#include "tools/trainer/compute/gpu/cublaslt_library.h"
#include "tools/trainer/compute/gpu/product_call.h"

namespace spillway::trainer::gpu {

// Of the device, for algorithms. Products on one stream share it.
inline constexpr uint64_t kProductWorkspaceBytes = uint64_t{32} << 20;

// Thread-compatible.
class CublasLtProducts {
 public:
  // Opens the library on the current device. `workspace`: kProductWorkspaceBytes of the device,
  // aligned to 256 bytes, which outlive it. Errors of CublasToStatus: without a driver, the library
  // does not open.
  static absl::StatusOr<std::unique_ptr<CublasLtProducts>> Create(const CublasLtLibrary& library,
                                                                  void* workspace);
  ~CublasLtProducts();
  CublasLtProducts(const CublasLtProducts&) = delete;
  CublasLtProducts& operator=(const CublasLtProducts&) = delete;

  // Chooses the algorithm of a call that has none yet. Unimplemented: the library has no algorithm
  // for it, within the workspace and with one order of sums.
  absl::Status Choose(const ProductCall& call);

  // Launches the product. The addresses are those of the call's first elements. FailedPrecondition
  // if no algorithm was chosen for it; errors of CublasToStatus.
  absl::Status Run(const ProductCall& call, const void* a, const void* b, void* d,
                   cudaStream_t stream) const;

  // A line for each shape, with its algorithm, in the order of the shapes: what a log keeps, so
  // that a resume can tell whether bits may differ.
  std::vector<std::string> Algorithms() const;

 private:
  struct Chosen {
    std::unique_ptr<ProductDescriptors> descriptors;
    cublasLtMatmulAlgo_t algorithm = {};
    std::string name;
  };

  CublasLtProducts(const CublasLtApi& api, cublasLtHandle_t handle, void* workspace)
      : api_(api), handle_(handle), workspace_(workspace) {}

  const CublasLtApi api_;
  const cublasLtHandle_t handle_;
  void* const workspace_;
  std::map<ProductCall, Chosen> chosen_;
};

}  // namespace spillway::trainer::gpu

#endif  // SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_CUBLASLT_PRODUCTS_CUDA_H_
