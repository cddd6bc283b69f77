// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/compute/gpu/cublaslt_descriptors_cuda.h"

#include "absl/strings/str_cat.h"
#include "src/base/status_macros.h"
#include "src/base/view.h"

namespace spillway::trainer::gpu {
namespace {

template <typename Function>
void Find(const CublasLtLibrary& library, const char* name, Function* function) {
  *function = reinterpret_cast<Function>(library.Function(name));
}

cudaDataType TypeOf(DType type) {
  switch (type) {
    case DType::kF16: return CUDA_R_16F;
    case DType::kBF16: return CUDA_R_16BF;
    default: return CUDA_R_32F;
  }
}

absl::StatusOr<DType> TypeFrom(uint32_t type) {
  for (const DType known : {DType::kF32, DType::kF16, DType::kBF16})
    if (type == static_cast<uint32_t>(TypeOf(known))) return known;
  return absl::InternalError(absl::StrCat("cuBLASLt has a matrix of type ", type));
}

}  // namespace

CublasLtApi::CublasLtApi(const CublasLtLibrary& library) {
  Find(library, "cublasLtCreate", &create);
  Find(library, "cublasLtDestroy", &destroy);
  Find(library, "cublasLtMatmul", &matmul);
  Find(library, "cublasLtMatmulAlgoGetHeuristic", &get_heuristic);
  Find(library, "cublasLtMatmulAlgoConfigGetAttribute", &get_config);
  Find(library, "cublasLtMatmulDescCreate", &create_operation);
  Find(library, "cublasLtMatmulDescDestroy", &destroy_operation);
  Find(library, "cublasLtMatmulDescSetAttribute", &set_operation);
  Find(library, "cublasLtMatmulDescGetAttribute", &get_operation);
  Find(library, "cublasLtMatrixLayoutCreate", &create_layout);
  Find(library, "cublasLtMatrixLayoutDestroy", &destroy_layout);
  Find(library, "cublasLtMatrixLayoutSetAttribute", &set_layout);
  Find(library, "cublasLtMatrixLayoutGetAttribute", &get_layout);
  Find(library, "cublasLtMatmulPreferenceCreate", &create_preference);
  Find(library, "cublasLtMatmulPreferenceDestroy", &destroy_preference);
  Find(library, "cublasLtMatmulPreferenceSetAttribute", &set_preference);
  Find(library, "cublasLtMatmulPreferenceGetAttribute", &get_preference);
}

absl::Status CublasToStatus(cublasStatus_t status, std::string_view what) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  const std::string text =
      absl::StrCat(base::View(what), ": cuBLASLt's status ", static_cast<int>(status));
  switch (status) {
    case CUBLAS_STATUS_ALLOC_FAILED: return absl::ResourceExhaustedError(text);
    case CUBLAS_STATUS_EXECUTION_FAILED: return absl::AbortedError(text);
    case CUBLAS_STATUS_NOT_SUPPORTED:
    case CUBLAS_STATUS_ARCH_MISMATCH: return absl::UnimplementedError(text);
    default: return absl::InternalError(text);
  }
}

absl::StatusOr<std::unique_ptr<ProductDescriptors>> ProductDescriptors::Create(
    const CublasLtApi* api, const ProductCall& call, uint64_t workspace_bytes) {
  std::unique_ptr<ProductDescriptors> made(new ProductDescriptors(api, call));
  SPILLWAY_RETURN_IF_ERROR(made->MakeOperation());
  SPILLWAY_RETURN_IF_ERROR(made->MakeLayout(call.a, &made->layouts_[0]));
  SPILLWAY_RETURN_IF_ERROR(made->MakeLayout(call.b, &made->layouts_[1]));
  SPILLWAY_RETURN_IF_ERROR(made->MakeLayout(call.d, &made->layouts_[2]));
  SPILLWAY_RETURN_IF_ERROR(made->MakePreference(workspace_bytes));
  return made;
}

ProductDescriptors::~ProductDescriptors() {
  if (operation_ != nullptr) api_->destroy_operation(operation_);
  for (const cublasLtMatrixLayout_t layout : layouts_)
    if (layout != nullptr) api_->destroy_layout(layout);
  if (preference_ != nullptr) api_->destroy_preference(preference_);
}

absl::Status ProductDescriptors::MakeOperation() {
  SPILLWAY_RETURN_IF_ERROR(CublasToStatus(
      api_->create_operation(&operation_, CUBLAS_COMPUTE_32F, CUDA_R_32F), "describing a product"));
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, bool transposes) {
    const cublasOperation_t operation = transposes ? CUBLAS_OP_T : CUBLAS_OP_N;
    return CublasToStatus(api_->set_operation(operation_, attribute, &operation, sizeof(operation)),
                          "setting a product's transposition");
  };
  SPILLWAY_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_DESC_TRANSA, call_.transposes_a));
  return set(CUBLASLT_MATMUL_DESC_TRANSB, call_.transposes_b);
}

absl::Status ProductDescriptors::MakeLayout(const StoredMatrix& matrix,
                                            cublasLtMatrixLayout_t* layout) {
  SPILLWAY_RETURN_IF_ERROR(CublasToStatus(
      api_->create_layout(layout, TypeOf(matrix.type), static_cast<uint64_t>(matrix.rows),
                          static_cast<uint64_t>(matrix.columns), matrix.ld),
      "describing a matrix"));
  if (call_.batch == 1) return absl::OkStatus();
  const auto batch = static_cast<int32_t>(call_.batch);
  SPILLWAY_RETURN_IF_ERROR(CublasToStatus(
      api_->set_layout(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof(batch)),
      "setting a batch"));
  return CublasToStatus(api_->set_layout(*layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET,
                                         &matrix.batch_elements, sizeof(matrix.batch_elements)),
                        "setting a batch's stride");
}

absl::Status ProductDescriptors::MakePreference(uint64_t workspace_bytes) {
  SPILLWAY_RETURN_IF_ERROR(
      CublasToStatus(api_->create_preference(&preference_), "making preferences of algorithms"));
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    return CublasToStatus(api_->set_preference(preference_, attribute, &value, sizeof(value)),
                          "setting a preference of algorithms");
  };
  constexpr uint32_t kNoReduction = CUBLASLT_REDUCTION_SCHEME_NONE;
  constexpr uint64_t kAllowed =
      CUBLASLT_NUMERICAL_IMPL_FLAGS_OP_TYPE_MASK | CUBLASLT_NUMERICAL_IMPL_FLAGS_ACCUMULATOR_32F |
      CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_16F | CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_16BF |
      CUBLASLT_NUMERICAL_IMPL_FLAGS_INPUT_32F;
  SPILLWAY_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes));
  SPILLWAY_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, kNoReduction));
  SPILLWAY_RETURN_IF_ERROR(set(CUBLASLT_MATMUL_PREF_IMPL_MASK, kAllowed));
  SPILLWAY_RETURN_IF_ERROR(
      set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, call_.a.alignment_bytes));
  SPILLWAY_RETURN_IF_ERROR(
      set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, call_.b.alignment_bytes));
  SPILLWAY_RETURN_IF_ERROR(
      set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, call_.d.alignment_bytes));
  return set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, call_.d.alignment_bytes);
}

absl::Status ProductDescriptors::ReadLayout(cublasLtMatrixLayout_t layout, StoredMatrix* matrix,
                                            int64_t* batch) const {
  const auto get = [&](cublasLtMatrixLayoutAttribute_t attribute, auto* value) {
    size_t written = 0;
    return CublasToStatus(api_->get_layout(layout, attribute, value, sizeof(*value), &written),
                          "reading a matrix's description");
  };
  uint32_t type = 0;
  uint64_t rows = 0, columns = 0;
  int32_t count = 0;
  SPILLWAY_RETURN_IF_ERROR(get(CUBLASLT_MATRIX_LAYOUT_TYPE, &type));
  SPILLWAY_RETURN_IF_ERROR(get(CUBLASLT_MATRIX_LAYOUT_ROWS, &rows));
  SPILLWAY_RETURN_IF_ERROR(get(CUBLASLT_MATRIX_LAYOUT_COLS, &columns));
  SPILLWAY_RETURN_IF_ERROR(get(CUBLASLT_MATRIX_LAYOUT_LD, &matrix->ld));
  SPILLWAY_RETURN_IF_ERROR(get(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count));
  SPILLWAY_RETURN_IF_ERROR(
      get(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &matrix->batch_elements));
  SPILLWAY_ASSIGN_OR_RETURN(matrix->type, TypeFrom(type));
  matrix->rows = static_cast<int64_t>(rows);
  matrix->columns = static_cast<int64_t>(columns);
  *batch = count;
  return absl::OkStatus();
}

absl::StatusOr<ProductCall> ProductDescriptors::ReadBack() const {
  ProductCall call;
  int64_t batches[3] = {};
  SPILLWAY_RETURN_IF_ERROR(ReadLayout(a(), &call.a, &batches[0]));
  SPILLWAY_RETURN_IF_ERROR(ReadLayout(b(), &call.b, &batches[1]));
  SPILLWAY_RETURN_IF_ERROR(ReadLayout(d(), &call.d, &batches[2]));
  if (batches[0] != batches[1] || batches[0] != batches[2])
    return absl::InternalError("cuBLASLt has batches of different sizes");
  call.batch = batches[0];
  const auto operation = [&](cublasLtMatmulDescAttributes_t attribute, bool* transposes) {
    cublasOperation_t value = CUBLAS_OP_N;
    size_t written = 0;
    SPILLWAY_RETURN_IF_ERROR(
        CublasToStatus(api_->get_operation(operation_, attribute, &value, sizeof(value), &written),
                       "reading a product's transposition"));
    *transposes = value == CUBLAS_OP_T;
    return absl::OkStatus();
  };
  SPILLWAY_RETURN_IF_ERROR(operation(CUBLASLT_MATMUL_DESC_TRANSA, &call.transposes_a));
  SPILLWAY_RETURN_IF_ERROR(operation(CUBLASLT_MATMUL_DESC_TRANSB, &call.transposes_b));
  const auto alignment = [&](cublasLtMatmulPreferenceAttributes_t attribute, uint32_t* bytes) {
    size_t written = 0;
    return CublasToStatus(
        api_->get_preference(preference_, attribute, bytes, sizeof(*bytes), &written),
        "reading a preference of algorithms");
  };
  SPILLWAY_RETURN_IF_ERROR(
      alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &call.a.alignment_bytes));
  SPILLWAY_RETURN_IF_ERROR(
      alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &call.b.alignment_bytes));
  SPILLWAY_RETURN_IF_ERROR(
      alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &call.d.alignment_bytes));
  call.m = call.d.rows;
  call.n = call.d.columns;
  call.k = call.transposes_a ? call.a.rows : call.a.columns;
  call.adds = call_.adds;  // beta is an argument of the product, not of its descriptors
  return call;
}

}  // namespace spillway::trainer::gpu
