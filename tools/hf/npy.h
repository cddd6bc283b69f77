// SPDX-License-Identifier: Apache-2.0
//
// Reads token ids from a NumPy file, strictly: NPY version 1 or 2, one dimension, little-endian
// uint16 or uint32, C order, and exactly as long as the header says. A caller reads the ranges that
// it needs; the file is never held in memory whole.

#ifndef SPILLWAY_TOOLS_HF_NPY_H_
#define SPILLWAY_TOOLS_HF_NPY_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tools/hf/file.h"

namespace spillway::hf {

struct NpyHeader {
  uint64_t num_elements = 0;
  uint64_t element_bytes = 0;  // 2: uint16, 4: uint32
};

// Parses `dict`, the header's Python literal:
//   {'descr': '<u2', 'fortran_order': False, 'shape': (9,), }
absl::StatusOr<NpyHeader> ParseNpyHeader(std::string_view dict, std::string_view origin);

// Thread-safe once open.
class NpyFile {
 public:
  // NotFound if there is no such file. InvalidArgument names the file, what was found and what is
  // expected.
  static absl::StatusOr<std::unique_ptr<NpyFile>> Open(const std::string& path);

  const std::string& path() const { return file_.path(); }
  uint64_t num_elements() const { return header_.num_elements; }
  uint64_t element_bytes() const { return header_.element_bytes; }

  // Reads elements [offset, offset + out.size()). InvalidArgument: the range is outside the file,
  // or a value is above 2^31 − 1.
  absl::Status Read(uint64_t offset, std::span<int32_t> out) const;

 private:
  NpyFile(File file, const NpyHeader& header, uint64_t data_offset);

  const File file_;
  const NpyHeader header_;
  const uint64_t data_offset_;
};

}  // namespace spillway::hf

#endif  // SPILLWAY_TOOLS_HF_NPY_H_
