// SPDX-License-Identifier: Apache-2.0
//
// The library's own description of a product: what cublasLtMatmul is called with, except addresses.
// Making descriptors and reading them needs no driver.

#ifndef SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_CUBLASLT_DESCRIPTORS_CUDA_H_
#define SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_CUBLASLT_DESCRIPTORS_CUDA_H_

#include <cublasLt.h>

#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/trainer/compute/gpu/cublaslt_library.h"
#include "tools/trainer/compute/gpu/product_call.h"

namespace spillway::trainer::gpu {

// The functions of a loaded library, with their types.
struct CublasLtApi {
  explicit CublasLtApi(const CublasLtLibrary& library);

  decltype(&::cublasLtCreate) create;
  decltype(&::cublasLtDestroy) destroy;
  decltype(&::cublasLtMatmul) matmul;
  decltype(&::cublasLtMatmulAlgoGetHeuristic) get_heuristic;
  decltype(&::cublasLtMatmulAlgoConfigGetAttribute) get_config;
  decltype(&::cublasLtMatmulDescCreate) create_operation;
  decltype(&::cublasLtMatmulDescDestroy) destroy_operation;
  decltype(&::cublasLtMatmulDescSetAttribute) set_operation;
  decltype(&::cublasLtMatmulDescGetAttribute) get_operation;
  decltype(&::cublasLtMatrixLayoutCreate) create_layout;
  decltype(&::cublasLtMatrixLayoutDestroy) destroy_layout;
  decltype(&::cublasLtMatrixLayoutSetAttribute) set_layout;
  decltype(&::cublasLtMatrixLayoutGetAttribute) get_layout;
  decltype(&::cublasLtMatmulPreferenceCreate) create_preference;
  decltype(&::cublasLtMatmulPreferenceDestroy) destroy_preference;
  decltype(&::cublasLtMatmulPreferenceSetAttribute) set_preference;
  decltype(&::cublasLtMatmulPreferenceGetAttribute) get_preference;
};

// Ok for CUBLAS_STATUS_SUCCESS. ResourceExhausted: out of memory. Aborted: an execution failed, so
// the device may be lost. Unimplemented: the library does not support it. Internal: all others.
// `what` names the operation.
absl::Status CublasToStatus(cublasStatus_t status, std::string_view what);

// The descriptors of a call. Only algorithms of the stated alignments are asked for, with sums in
// fp32, operands as they are (never TF32) and no reduction between blocks, so that one algorithm
// always sums in one order. REQUIRES: `api` outlives it.
class ProductDescriptors {
 public:
  // `workspace_bytes`: of the device, for the algorithm. Errors of CublasToStatus.
  static absl::StatusOr<std::unique_ptr<ProductDescriptors>> Create(const CublasLtApi* api,
                                                                    const ProductCall& call,
                                                                    uint64_t workspace_bytes);
  ~ProductDescriptors();
  ProductDescriptors(const ProductDescriptors&) = delete;
  ProductDescriptors& operator=(const ProductDescriptors&) = delete;

  // The call as the library has it.
  absl::StatusOr<ProductCall> ReadBack() const;

  cublasLtMatmulDesc_t operation() const { return operation_; }
  cublasLtMatrixLayout_t a() const { return layouts_[0]; }
  cublasLtMatrixLayout_t b() const { return layouts_[1]; }
  cublasLtMatrixLayout_t d() const { return layouts_[2]; }
  cublasLtMatmulPreference_t preference() const { return preference_; }

 private:
  ProductDescriptors(const CublasLtApi* api, const ProductCall& call) : api_(api), call_(call) {}

  absl::Status MakeOperation();
  absl::Status MakeLayout(const StoredMatrix& matrix, cublasLtMatrixLayout_t* layout);
  absl::Status MakePreference(uint64_t workspace_bytes);
  absl::Status ReadLayout(cublasLtMatrixLayout_t layout, StoredMatrix* matrix,
                          int64_t* batch) const;

  const CublasLtApi* const api_;
  const ProductCall call_;
  cublasLtMatmulDesc_t operation_ = nullptr;
  cublasLtMatrixLayout_t layouts_[3] = {};  // A, B, D; C is D
  cublasLtMatmulPreference_t preference_ = nullptr;
};

}  // namespace spillway::trainer::gpu

#endif  // SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_CUBLASLT_DESCRIPTORS_CUDA_H_
