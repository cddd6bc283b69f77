// SPDX-License-Identifier: Apache-2.0
//
// The header of a safetensors file: which tensors it holds and where. A pure function of the
// header's text, so that tests and the fuzzer reach every rule without a file. Reading bytes is
// safetensors_reader.h's.
//
// The format (https://github.com/huggingface/safetensors): eight bytes, the header's length N,
// little endian; N bytes of JSON,
//   {NAME: {"dtype": "F32", "shape": [2, 3], "data_offsets": [BEGIN, END]}, ...},
// offsets counted from the header's end; then the data, without holes or overlaps, to the end of
// the file.

#ifndef SPILLWAY_TOOLS_HF_SAFETENSORS_HEADER_H_
#define SPILLWAY_TOOLS_HF_SAFETENSORS_HEADER_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace spillway::hf {

// The limit of the reference implementation.
inline constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;
inline constexpr uint64_t kSafetensorsLengthBytes = 8;

// The element types that Spillway reads and writes.
enum class TensorDType : uint8_t { kF32, kF16, kBF16 };

// "F32", "F16", "BF16", as the format spells them.
std::string_view Name(TensorDType dtype);
constexpr uint64_t ElementBytes(TensorDType dtype) { return dtype == TensorDType::kF32 ? 4 : 2; }

struct TensorEntry {
  std::string name;
  std::string dtype_name;            // as the file spells it, "BF16", "I64"
  std::optional<TensorDType> dtype;  // empty: of a type that Spillway does not read
  std::vector<int64_t> shape;        // each at least 0; empty is a scalar
  uint64_t num_elements = 0;
  uint64_t file_offset = 0;  // of the first byte, from the start of the file
  uint64_t size_bytes = 0;
};

// `json` is the header's text; `file_bytes` the size of the whole file. The entries come in the
// order of their data. InvalidArgument names `origin`, the tensor, what was found and what is
// expected.
absl::StatusOr<std::vector<TensorEntry>> ParseSafetensorsHeader(std::string_view json,
                                                                uint64_t file_bytes,
                                                                std::string_view origin);

// "[2, 3]".
std::string FormatShape(const std::vector<int64_t>& shape);

}  // namespace spillway::hf

#endif  // SPILLWAY_TOOLS_HF_SAFETENSORS_HEADER_H_
