// SPDX-License-Identifier: Apache-2.0
//
// Finds and loads NVIDIA's cuBLASLt at run time, as OpenBLAS is loaded. It is never bundled: it is
// half a gigabyte, and under NVIDIA's licence. Any build can look for it, with or without CUDA.

#ifndef SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_CUBLASLT_LIBRARY_H_
#define SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_CUBLASLT_LIBRARY_H_

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace spillway::trainer::gpu {

// The functions that products call.
inline constexpr const char* kCublasLtFunctions[] = {
    "cublasLtGetVersion",
    "cublasLtCreate",
    "cublasLtDestroy",
    "cublasLtMatmul",
    "cublasLtMatmulAlgoGetHeuristic",
    "cublasLtMatmulAlgoConfigGetAttribute",
    "cublasLtMatmulDescCreate",
    "cublasLtMatmulDescDestroy",
    "cublasLtMatmulDescSetAttribute",
    "cublasLtMatmulDescGetAttribute",
    "cublasLtMatrixLayoutCreate",
    "cublasLtMatrixLayoutDestroy",
    "cublasLtMatrixLayoutSetAttribute",
    "cublasLtMatrixLayoutGetAttribute",
    "cublasLtMatmulPreferenceCreate",
    "cublasLtMatmulPreferenceDestroy",
    "cublasLtMatmulPreferenceSetAttribute",
    "cublasLtMatmulPreferenceGetAttribute",
};

// The places where LoadCublasLt looks, in order. A name without a slash is looked up as the system
// does (ld.so(8)). The others are files of a CUDA Toolkit, and of the `nvidia` folder beside a
// PyTorch: of the Python environment that this program lies in, of the active one, of the user's
// and of the system's.
std::vector<std::string> CublasLtPlaces();

// A loaded library. It stays loaded until the process ends.
class CublasLtLibrary {
 public:
  // Loads `file`, or if it is empty the first of CublasLtPlaces that loads. Unimplemented says
  // where it was looked for and how to get it, or that the library is older than 12, or which
  // function it lacks.
  static absl::StatusOr<CublasLtLibrary> Load(const std::string& file = "");

  // The file that was loaded.
  const std::string& path() const { return path_; }
  // As the library numbers it: 130100 is 13.1.0.
  size_t version() const { return version_; }
  std::string VersionName() const;

  // The function's address. REQUIRES: it is one of kCublasLtFunctions.
  void* Function(const char* name) const;

 private:
  CublasLtLibrary(void* handle, std::string path, size_t version)
      : handle_(handle), path_(std::move(path)), version_(version) {}

  void* handle_;
  std::string path_;
  size_t version_;
};

}  // namespace spillway::trainer::gpu

#endif  // SPILLWAY_TOOLS_TRAINER_COMPUTE_GPU_CUBLASLT_LIBRARY_H_
