// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/compute/gpu/cublaslt_products_cuda.h"

#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "src/base/status_macros.h"

namespace spillway::trainer::gpu {
namespace {

// The library names its best algorithm first. A few more are asked for, in case the first ones
// split sums although they were told not to.
constexpr int kAlgorithms = 8;

}  // namespace

absl::StatusOr<std::unique_ptr<CublasLtProducts>> CublasLtProducts::Create(
    const CublasLtLibrary& library, void* workspace) {
  const CublasLtApi api(library);
  cublasLtHandle_t handle = nullptr;
  SPILLWAY_RETURN_IF_ERROR(
      CublasToStatus(api.create(&handle), absl::StrCat("opening ", library.path())));
  return std::unique_ptr<CublasLtProducts>(new CublasLtProducts(api, handle, workspace));
}

CublasLtProducts::~CublasLtProducts() {
  chosen_.clear();
  api_.destroy(handle_);
}

absl::Status CublasLtProducts::Choose(const ProductCall& call) {
  if (chosen_.contains(call)) return absl::OkStatus();
  Chosen chosen;
  SPILLWAY_ASSIGN_OR_RETURN(chosen.descriptors,
                            ProductDescriptors::Create(&api_, call, kProductWorkspaceBytes));
  const ProductDescriptors& product = *chosen.descriptors;
  std::array<cublasLtMatmulHeuristicResult_t, kAlgorithms> found = {};
  int count = 0;
  const cublasStatus_t status =
      api_.get_heuristic(handle_, product.operation(), product.a(), product.b(), product.d(),
                         product.d(), product.preference(), kAlgorithms, found.data(), &count);
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) {
    SPILLWAY_RETURN_IF_ERROR(
        CublasToStatus(status, absl::StrCat("choosing an algorithm for ", Name(call))));
  }
  for (int i = 0; i < count && status == CUBLAS_STATUS_SUCCESS; ++i) {
    const cublasLtMatmulHeuristicResult_t& result = found[static_cast<size_t>(i)];
    if (result.state != CUBLAS_STATUS_SUCCESS || result.workspaceSize > kProductWorkspaceBytes)
      continue;
    const auto config = [&](cublasLtMatmulAlgoConfigAttributes_t attribute) {
      uint32_t value = 0;  // ids and counts have 32 bits each
      size_t written = 0;
      return api_.get_config(&result.algo, attribute, &value, sizeof(value), &written) ==
                     CUBLAS_STATUS_SUCCESS
                 ? value
                 : 0;
    };
    if (config(CUBLASLT_ALGO_CONFIG_SPLITK_NUM) > 1 ||
        config(CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME) != CUBLASLT_REDUCTION_SCHEME_NONE)
      continue;
    chosen.algorithm = result.algo;
    chosen.name = absl::StrFormat(
        "%s: algorithm %d, tile %d, stages %d", Name(call), config(CUBLASLT_ALGO_CONFIG_ID),
        config(CUBLASLT_ALGO_CONFIG_TILE_ID), config(CUBLASLT_ALGO_CONFIG_STAGES_ID));
    chosen_.emplace(call, std::move(chosen));
    return absl::OkStatus();
  }
  return absl::UnimplementedError(absl::StrCat("cuBLASLt has no algorithm for the product ",
                                               Name(call), " that keeps one order of sums within ",
                                               kProductWorkspaceBytes >> 20, " MiB of workspace"));
}

absl::Status CublasLtProducts::Run(const ProductCall& call, const void* a, const void* b, void* d,
                                   cudaStream_t stream) const {
  const auto found = chosen_.find(call);
  if (found == chosen_.end()) {
    return absl::FailedPreconditionError(
        absl::StrCat("no algorithm was chosen for the product ", Name(call)));
  }
  const Chosen& chosen = found->second;
  const float one = 1;
  const float beta = call.adds ? 1 : 0;
  const cublasStatus_t status = api_.matmul(
      handle_, chosen.descriptors->operation(), &one, a, chosen.descriptors->a(), b,
      chosen.descriptors->b(), &beta, d, chosen.descriptors->d(), d, chosen.descriptors->d(),
      &chosen.algorithm, workspace_, kProductWorkspaceBytes, stream);
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return CublasToStatus(status, absl::StrCat("the product ", Name(call)));
}

std::vector<std::string> CublasLtProducts::Algorithms() const {
  std::vector<std::string> lines;
  lines.reserve(chosen_.size());
  for (const auto& [call, chosen] : chosen_) lines.push_back(chosen.name);
  return lines;
}

}  // namespace spillway::trainer::gpu
