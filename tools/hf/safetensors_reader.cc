// SPDX-License-Identifier: Apache-2.0

#include "tools/hf/safetensors_reader.h"

#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/base/half_floats.h"
#include "src/base/status_macros.h"
#include "tools/hf/strict_json.h"

namespace spillway::hf {
namespace {

constexpr size_t kConvertBytes = 16 << 10;  // converted at a time, on the stack

// Rounds to nearest even. A value too large for fp32 becomes infinite.
float DoubleToFloat(double value) { return static_cast<float>(value); }

// Reads elements of type `Stored` from the byte `begin` on.
template <typename Stored>
absl::Status ReadConverted(const File& file, uint64_t begin, std::span<float> out,
                           float (*convert)(Stored)) {
  std::array<Stored, kConvertBytes / sizeof(Stored)> stored;
  for (size_t done = 0; done < out.size();) {
    const std::span<Stored> piece =
        std::span(stored).first(std::min(stored.size(), out.size() - done));
    SPILLWAY_RETURN_IF_ERROR(
        file.ReadAt(begin + done * sizeof(Stored), std::as_writable_bytes(piece)));
    std::transform(piece.begin(), piece.end(), out.begin() + static_cast<ptrdiff_t>(done), convert);
    done += piece.size();
  }
  return absl::OkStatus();
}

}  // namespace

SafetensorsFile::SafetensorsFile(File file, std::vector<TensorEntry> tensors)
    : file_(std::move(file)), tensors_(std::move(tensors)) {
  for (size_t i = 0; i < tensors_.size(); ++i) index_by_name_.emplace(tensors_[i].name, i);
}

absl::StatusOr<std::unique_ptr<SafetensorsFile>> SafetensorsFile::Open(const std::string& path) {
  SPILLWAY_ASSIGN_OR_RETURN(File file, File::Open(path));
  uint64_t header_bytes = 0;
  if (file.size_bytes() < kSafetensorsLengthBytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": has ", file.size_bytes(),
                                                   " bytes; a safetensors file has at least ",
                                                   kSafetensorsLengthBytes));
  }
  SPILLWAY_RETURN_IF_ERROR(file.ReadAt(0, std::as_writable_bytes(std::span(&header_bytes, 1))));
  const uint64_t limit =
      std::min(kMaxSafetensorsHeaderBytes, file.size_bytes() - kSafetensorsLengthBytes);
  if (header_bytes > limit) {
    return absl::InvalidArgumentError(absl::StrCat(
        path, ": gives its header ", header_bytes, " bytes; at most ", limit,
        " are possible in a file of ", file.size_bytes(), ": not a safetensors file, or cut off"));
  }
  std::string header(header_bytes, '\0');
  SPILLWAY_RETURN_IF_ERROR(
      file.ReadAt(kSafetensorsLengthBytes, std::as_writable_bytes(std::span(header))));
  SPILLWAY_ASSIGN_OR_RETURN(std::vector<TensorEntry> tensors,
                            ParseSafetensorsHeader(header, file.size_bytes(), path));
  return std::unique_ptr<SafetensorsFile>(new SafetensorsFile(std::move(file), std::move(tensors)));
}

const TensorEntry* SafetensorsFile::Find(std::string_view name) const {
  const auto found = index_by_name_.find(std::string(name));
  return found == index_by_name_.end() ? nullptr : &tensors_[found->second];
}

absl::Status SafetensorsFile::Read(std::string_view name, uint64_t element_offset,
                                   std::span<float> out) const {
  const TensorEntry* entry = Find(name);
  if (entry == nullptr)
    return absl::NotFoundError(absl::StrCat(path(), ": holds no tensor ", Quoted(name)));
  if (!entry->dtype.has_value()) {
    return absl::InvalidArgumentError(absl::StrCat(path(), ": tensor ", Quoted(name), " has type ",
                                                   Quoted(entry->dtype_name),
                                                   "; F32, F16, BF16 and F64 are supported"));
  }
  if (element_offset > entry->num_elements || out.size() > entry->num_elements - element_offset) {
    return absl::InvalidArgumentError(absl::StrCat(path(), ": tensor ", Quoted(name), " has ",
                                                   entry->num_elements, " elements; asked for ",
                                                   out.size(), " from ", element_offset));
  }
  const uint64_t begin = entry->file_offset + element_offset * ElementBytes(*entry->dtype);
  switch (*entry->dtype) {
    case TensorDType::kF32: return file_.ReadAt(begin, std::as_writable_bytes(out));
    case TensorDType::kF16: return ReadConverted<uint16_t>(file_, begin, out, base::HalfToFloat);
    case TensorDType::kBF16: return ReadConverted<uint16_t>(file_, begin, out, base::Bf16ToFloat);
    case TensorDType::kF64: return ReadConverted<double>(file_, begin, out, DoubleToFloat);
  }
  return absl::InternalError(absl::StrCat(path(), ": tensor of an unknown type"));
}

}  // namespace spillway::hf
