// SPDX-License-Identifier: Apache-2.0
//
// A library in place of cuBLASLt, which multiplies in host memory: column-major, as the guide
// defines it. It knows only what its descriptors say, so it shows that they say everything. As the
// real one, it accepts descriptors that make no sense. FAKE_CUBLASLT, when it is opened, makes it
// fail: "no-driver", "no-algorithm", "splits-sums", "fails", "out-of-memory". Built with
// FAKE_VERSION and FAKE_INCOMPLETE, it is an old one, or lacks cublasLtMatmul.

#include <cublasLt.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#ifndef FAKE_VERSION
#define FAKE_VERSION 130100
#endif

namespace {

// The attributes that were set, each with its bytes.
using Attributes = std::map<int, std::vector<char>>;

template <typename T>
T Get(const Attributes& attributes, int attribute, T otherwise) {
  const auto found = attributes.find(attribute);
  if (found != attributes.end()) std::memcpy(&otherwise, found->second.data(), sizeof(T));
  return otherwise;
}

cublasStatus_t Set(void* to, int attribute, const void* value, size_t size) {
  const auto* const bytes = static_cast<const char*>(value);
  (*static_cast<Attributes*>(to))[attribute].assign(bytes, bytes + size);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t Read(const void* from, int attribute, void* value, size_t size) {
  const auto& attributes = *static_cast<const Attributes*>(from);
  const auto found = attributes.find(attribute);
  if (found == attributes.end()) {  // every default that is read is 0, except a batch of 1
    std::memset(value, 0, size);
    return CUBLAS_STATUS_SUCCESS;
  }
  if (found->second.size() != size) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(value, found->second.data(), size);
  return CUBLAS_STATUS_SUCCESS;
}

template <typename Handle>
cublasStatus_t Make(Handle* handle) {
  *handle = reinterpret_cast<Handle>(new Attributes);
  return CUBLAS_STATUS_SUCCESS;
}

template <typename Handle>
cublasStatus_t Delete(Handle handle) {
  delete reinterpret_cast<Attributes*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}

struct Layout {
  uint64_t rows, columns;
  int64_t ld, stride;
  int32_t batch;
};

Layout LayoutOf(const void* layout) {
  const auto& from = *static_cast<const Attributes*>(layout);
  return {Get<uint64_t>(from, CUBLASLT_MATRIX_LAYOUT_ROWS, 0),
          Get<uint64_t>(from, CUBLASLT_MATRIX_LAYOUT_COLS, 0),
          Get<int64_t>(from, CUBLASLT_MATRIX_LAYOUT_LD, 0),
          Get<int64_t>(from, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, 0),
          Get<int32_t>(from, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, 1)};
}

std::string Fault(const cublasLtContext* handle) {
  return *reinterpret_cast<const std::string*>(handle);
}

constexpr uint64_t kAlgorithm = 0x5311C0DE;

}  // namespace

extern "C" {

size_t cublasLtGetVersion() { return FAKE_VERSION; }

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  const char* const fault = std::getenv("FAKE_CUBLASLT");
  const std::string text = fault == nullptr ? "" : fault;
  if (text == "no-driver") return CUBLAS_STATUS_NOT_INITIALIZED;
  *handle = reinterpret_cast<cublasLtHandle_t>(new std::string(text));
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle) {
  delete reinterpret_cast<std::string*>(handle);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* operation, cublasComputeType_t,
                                        cudaDataType_t) {
  return Make(operation);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t operation) {
  return Delete(operation);
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t operation,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t size) {
  return Set(operation, attribute, value, size);
}
cublasStatus_t cublasLtMatmulDescGetAttribute(cublasLtMatmulDesc_t operation,
                                              cublasLtMatmulDescAttributes_t attribute, void* value,
                                              size_t size, size_t*) {
  return Read(operation, attribute, value, size);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t ld) {
  Make(layout);
  const auto code = static_cast<uint32_t>(type);
  const int32_t batch = 1;
  Set(*layout, CUBLASLT_MATRIX_LAYOUT_TYPE, &code, sizeof(code));
  Set(*layout, CUBLASLT_MATRIX_LAYOUT_ROWS, &rows, sizeof(rows));
  Set(*layout, CUBLASLT_MATRIX_LAYOUT_COLS, &columns, sizeof(columns));
  Set(*layout, CUBLASLT_MATRIX_LAYOUT_LD, &ld, sizeof(ld));
  return Set(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof(batch));
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) { return Delete(layout); }
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                const void* value, size_t size) {
  return Set(layout, attribute, value, size);
}
cublasStatus_t cublasLtMatrixLayoutGetAttribute(cublasLtMatrixLayout_t layout,
                                                cublasLtMatrixLayoutAttribute_t attribute,
                                                void* value, size_t size, size_t*) {
  return Read(layout, attribute, value, size);
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* preference) {
  return Make(preference);
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t preference) {
  return Delete(preference);
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    const void* value, size_t size) {
  return Set(preference, attribute, value, size);
}
cublasStatus_t cublasLtMatmulPreferenceGetAttribute(cublasLtMatmulPreference_t preference,
                                                    cublasLtMatmulPreferenceAttributes_t attribute,
                                                    void* value, size_t size, size_t*) {
  return Read(preference, attribute, value, size);
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t preference, int asked,
                                              cublasLtMatmulHeuristicResult_t* results,
                                              int* count) {
  const auto& wishes = *reinterpret_cast<const Attributes*>(preference);
  *count = 0;
  if (Fault(handle) == "no-algorithm") return CUBLAS_STATUS_NOT_SUPPORTED;
  // Unless it is told otherwise, the first algorithm divides its sums.
  const bool divides = Get<uint32_t>(wishes, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, 7) != 0 ||
                       Fault(handle) == "splits-sums";
  for (int i = 0; i < asked && i < 2; ++i) {
    results[i] = {};
    results[i].state = CUBLAS_STATUS_SUCCESS;
    results[i].algo.data[0] = kAlgorithm;
    results[i].algo.data[1] = divides || i == 0 ? 4 : 1;  // parts of a sum
    ++*count;
  }
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoConfigGetAttribute(const cublasLtMatmulAlgo_t* algorithm,
                                                    cublasLtMatmulAlgoConfigAttributes_t attribute,
                                                    void* value, size_t size, size_t*) {
  const auto number =
      static_cast<uint32_t>(attribute == CUBLASLT_ALGO_CONFIG_SPLITK_NUM ? algorithm->data[1] : 0);
  if (size != sizeof(number)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(value, &number, size);
  return CUBLAS_STATUS_SUCCESS;
}

#ifndef FAKE_INCOMPLETE
cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t operation,
                              const void* alpha, const void* a, cublasLtMatrixLayout_t a_layout,
                              const void* b, cublasLtMatrixLayout_t b_layout, const void* beta,
                              const void* c, cublasLtMatrixLayout_t, void* d,
                              cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t,
                              cudaStream_t) {
  if (Fault(handle) == "fails") return CUBLAS_STATUS_EXECUTION_FAILED;
  if (Fault(handle) == "out-of-memory") return CUBLAS_STATUS_ALLOC_FAILED;
  if (algorithm == nullptr || algorithm->data[0] != kAlgorithm || algorithm->data[1] != 1 ||
      workspace == nullptr || c != d)
    return CUBLAS_STATUS_INVALID_VALUE;
  const auto& how = *reinterpret_cast<const Attributes*>(operation);
  const auto transposes = [&](int attribute) {
    return Get(how, attribute, CUBLAS_OP_N) == CUBLAS_OP_T;
  };
  const bool transposes_a = transposes(CUBLASLT_MATMUL_DESC_TRANSA);
  const bool transposes_b = transposes(CUBLASLT_MATMUL_DESC_TRANSB);
  const Layout la = LayoutOf(a_layout), lb = LayoutOf(b_layout), ld = LayoutOf(d_layout);
  const uint64_t inner = transposes_a ? la.rows : la.columns;
  for (int64_t batch = 0; batch < ld.batch; ++batch) {
    const float* const from_a = static_cast<const float*>(a) + batch * la.stride;
    const float* const from_b = static_cast<const float*>(b) + batch * lb.stride;
    float* const to = static_cast<float*>(d) + batch * ld.stride;
    for (int64_t column = 0; column < static_cast<int64_t>(ld.columns); ++column) {
      for (int64_t row = 0; row < static_cast<int64_t>(ld.rows); ++row) {
        float sum = 0;
        for (int64_t i = 0; i < static_cast<int64_t>(inner); ++i) {
          sum += from_a[transposes_a ? row * la.ld + i : i * la.ld + row] *
                 from_b[transposes_b ? i * lb.ld + column : column * lb.ld + i];
        }
        float& element = to[column * ld.ld + row];
        element =
            *static_cast<const float*>(alpha) * sum +
            (*static_cast<const float*>(beta) == 0 ? 0
                                                   : *static_cast<const float*>(beta) * element);
      }
    }
  }
  return CUBLAS_STATUS_SUCCESS;
}
#endif

}  // extern "C"
