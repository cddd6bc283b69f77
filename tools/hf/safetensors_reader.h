// SPDX-License-Identifier: Apache-2.0
//
// Reads one safetensors file. The whole header is validated before any data is read; the data is
// then read in pieces. Nothing is memory-mapped, and no tensor is held whole: memory is needed for
// the header and one small buffer only.

#ifndef SPILLWAY_TOOLS_HF_SAFETENSORS_READER_H_
#define SPILLWAY_TOOLS_HF_SAFETENSORS_READER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/hf/file.h"
#include "tools/hf/safetensors_header.h"

namespace spillway::hf {

// Thread-safe once open: Read keeps no state.
//
//   auto file = SafetensorsFile::Open("model.safetensors");
//   std::vector<float> rows(1 << 16);
//   auto status = (*file)->Read("model.norm.weight", 0, rows);
class SafetensorsFile {
 public:
  // NotFound if there is no such file. InvalidArgument names the file, what was found and what is
  // expected.
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);

  const std::string& path() const { return file_.path(); }
  // The tensors, in the order of their data.
  const std::vector<TensorEntry>& tensors() const { return tensors_; }
  // Returns null if the file has no such tensor.
  const TensorEntry* Find(std::string_view name) const;

  // Reads elements [element_offset, element_offset + out.size()) of `name`, row-major, and converts
  // them to fp32. NotFound: there is no such tensor. InvalidArgument: its type is not F32, F16,
  // BF16 or F64, or the range is outside the tensor.
  absl::Status Read(std::string_view name, uint64_t element_offset, std::span<float> out) const;

 private:
  SafetensorsFile(File file, std::vector<TensorEntry> tensors);

  const File file_;
  const std::vector<TensorEntry> tensors_;
  std::unordered_map<std::string, size_t> index_by_name_;
};

}  // namespace spillway::hf

#endif  // SPILLWAY_TOOLS_HF_SAFETENSORS_READER_H_
