// SPDX-License-Identifier: Apache-2.0
//
// Parses the header of a safetensors file: which tensors it holds and where. Parsing is a pure
// function of the header's text and the file's size, so that tests and the fuzzer reach every rule
// without a file. safetensors_reader.h reads the data.
//
// The format (https://github.com/huggingface/safetensors) has three parts:
//   - eight bytes: the header's length N, little endian;
//   - N bytes: the header, JSON of the form
//       {NAME: {"dtype": "F32", "shape": [2, 3], "data_offsets": [BEGIN, END]}, ...},
//     with offsets counted from the header's end;
//   - the data, without holes or overlaps, to the end of the file.

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

// The element types that Spillway reads.
enum class TensorDType : uint8_t { kF32, kF16, kBF16, kF64 };

// Returns "F32", "F16", "BF16" or "F64", as the format spells them.
std::string_view Name(TensorDType dtype);
constexpr uint64_t ElementBytes(TensorDType dtype) {
  if (dtype == TensorDType::kF64) return 8;
  return dtype == TensorDType::kF32 ? 4 : 2;
}

struct TensorEntry {
  std::string name;
  std::string dtype_name;            // as the file spells it, "BF16", "I64"
  std::optional<TensorDType> dtype;  // empty if Spillway does not read the type
  std::vector<int64_t> shape;        // each at least 0; empty is a scalar
  uint64_t num_elements = 0;
  uint64_t file_offset = 0;  // position of the first byte in the file
  uint64_t size_bytes = 0;
};

// Returns the entries in the order of their data. `json` is the header's text, `file_bytes` the
// size of the whole file. InvalidArgument names `origin`, the tensor, what was found and what is
// expected.
absl::StatusOr<std::vector<TensorEntry>> ParseSafetensorsHeader(std::string_view json,
                                                                uint64_t file_bytes,
                                                                std::string_view origin);

// Returns "[2, 3]".
std::string FormatShape(const std::vector<int64_t>& shape);

}  // namespace spillway::hf

#endif  // SPILLWAY_TOOLS_HF_SAFETENSORS_HEADER_H_
