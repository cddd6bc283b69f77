// SPDX-License-Identifier: Apache-2.0

#include "tools/hf/safetensors_header.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "src/base/status_macros.h"
#include "tools/hf/strict_json.h"

namespace spillway::hf {

static_assert(std::endian::native == std::endian::little,
              "the formats' bytes are read without swapping");

namespace {

using nlohmann::json;

constexpr char kMetadataName[] = "__metadata__";

struct KnownDType {
  std::string_view name;
  uint64_t bits;
};
// The format's types. Spillway reads three of them. The sizes of the others serve to check their
// data offsets.
constexpr std::array kKnownDTypes = {
    KnownDType{"BOOL", 8},    KnownDType{"U8", 8},      KnownDType{"I8", 8},
    KnownDType{"F8_E5M2", 8}, KnownDType{"F8_E4M3", 8}, KnownDType{"F8_E8M0", 8},
    KnownDType{"F4", 4},      KnownDType{"F6_E2M3", 6}, KnownDType{"F6_E3M2", 6},
    KnownDType{"I16", 16},    KnownDType{"U16", 16},    KnownDType{"F16", 16},
    KnownDType{"BF16", 16},   KnownDType{"I32", 32},    KnownDType{"U32", 32},
    KnownDType{"F32", 32},    KnownDType{"F64", 64},    KnownDType{"I64", 64},
    KnownDType{"U64", 64},    KnownDType{"C64", 64},
};

absl::Status Invalid(std::string_view origin, std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(std::string(origin), ": ", std::string(what)));
}

// Makes errors about one tensor, with messages like "tensor "w": …".
struct EntryErrors {
  std::string_view origin;
  std::string_view name;
  absl::Status operator()(std::string_view what) const {
    return Invalid(origin, absl::StrCat("tensor ", Quoted(name), ": ", std::string(what)));
  }
};

std::optional<TensorDType> SupportedDType(std::string_view name) {
  for (TensorDType dtype :
       {TensorDType::kF32, TensorDType::kF16, TensorDType::kBF16, TensorDType::kF64}) {
    if (Name(dtype) == name) return dtype;
  }
  return std::nullopt;
}

absl::Status CheckMetadata(const json& metadata, std::string_view origin) {
  if (!metadata.is_object()) {
    return Invalid(
        origin, absl::StrCat(kMetadataName, " is ", Excerpt(metadata), "; an object is expected"));
  }
  for (const auto& [name, value] : metadata.items()) {
    if (!value.is_string()) {
      return Invalid(origin, absl::StrCat(kMetadataName, ".", Quoted(name), " is ", Excerpt(value),
                                          "; a string is expected"));
    }
  }
  return absl::OkStatus();
}

absl::Status ParseShape(const json& shape, const EntryErrors& error, TensorEntry* entry) {
  if (!shape.is_array())
    return error(absl::StrCat("shape is ", Excerpt(shape), "; an array is expected"));
  uint64_t num_elements = 1;
  for (const json& dimension : shape) {
    if (!dimension.is_number_unsigned() ||
        dimension.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return error(absl::StrCat("shape holds ", Excerpt(dimension),
                                "; whole numbers from 0 to 2^63 - 1 are expected"));
    }
    const uint64_t size = dimension.get<uint64_t>();
    if (__builtin_mul_overflow(num_elements, size, &num_elements)) {
      return error(absl::StrCat("shape ", Excerpt(shape), " has more than 2^64 - 1 elements"));
    }
    entry->shape.push_back(static_cast<int64_t>(size));
  }
  entry->num_elements = num_elements;
  return absl::OkStatus();
}

absl::Status ParseOffsets(const json& offsets, uint64_t data_bytes, const EntryErrors& error,
                          uint64_t* begin, uint64_t* end) {
  if (!offsets.is_array() || offsets.size() != 2 || !offsets[0].is_number_unsigned() ||
      !offsets[1].is_number_unsigned()) {
    return error(absl::StrCat("data_offsets is ", Excerpt(offsets), "; [BEGIN, END] is expected"));
  }
  *begin = offsets[0].get<uint64_t>();
  *end = offsets[1].get<uint64_t>();
  if (*begin > *end || *end > data_bytes) {
    return error(absl::StrCat("data_offsets ", Excerpt(offsets), " leave the file's ", data_bytes,
                              " bytes of data"));
  }
  return absl::OkStatus();
}

// Checks that the offsets span as many bytes as the elements need. A tensor of an unknown type is
// not checked, because its element size is not known.
absl::Status CheckSize(const TensorEntry& entry, const EntryErrors& error) {
  const auto known =
      std::find_if(kKnownDTypes.begin(), kKnownDTypes.end(),
                   [&](const KnownDType& dtype) { return dtype.name == entry.dtype_name; });
  if (known == kKnownDTypes.end()) return absl::OkStatus();
  uint64_t bits = 0;
  if (__builtin_mul_overflow(entry.num_elements, known->bits, &bits) || bits % 8 != 0) {
    return error(absl::StrCat("shape ", FormatShape(entry.shape), " of ", entry.dtype_name,
                              " is not a possible number of bytes"));
  }
  if (bits / 8 != entry.size_bytes) {
    return error(absl::StrCat("data_offsets span ", entry.size_bytes, " bytes; shape ",
                              FormatShape(entry.shape), " of ", entry.dtype_name, " needs ",
                              bits / 8));
  }
  return absl::OkStatus();
}

absl::StatusOr<TensorEntry> ParseEntry(const std::string& name, const json& value,
                                       uint64_t data_bytes, std::string_view origin) {
  const EntryErrors error{origin, name};
  if (!value.is_object())
    return error(absl::StrCat("is ", Excerpt(value), "; an object is expected"));
  for (const auto& [key, unused] : value.items()) {
    if (key != "dtype" && key != "shape" && key != "data_offsets") {
      return error(absl::StrCat("has the unknown key ", Quoted(key)));
    }
  }
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    if (!value.contains(key)) return error(absl::StrCat("has no ", key));
  }
  const json& dtype = value["dtype"];
  if (!dtype.is_string())
    return error(absl::StrCat("dtype is ", Excerpt(dtype), "; a string is expected"));

  TensorEntry entry;
  entry.name = name;
  entry.dtype_name = dtype.get<std::string>();
  entry.dtype = SupportedDType(entry.dtype_name);
  uint64_t begin = 0;
  uint64_t end = 0;
  SPILLWAY_RETURN_IF_ERROR(ParseShape(value["shape"], error, &entry));
  SPILLWAY_RETURN_IF_ERROR(ParseOffsets(value["data_offsets"], data_bytes, error, &begin, &end));
  entry.file_offset = begin;  // in the data; the caller makes it absolute
  entry.size_bytes = end - begin;
  SPILLWAY_RETURN_IF_ERROR(CheckSize(entry, error));
  return entry;
}

// Sorts the entries by offset, and checks that each tensor begins where the one before it ends, and
// that the last one ends with the data.
absl::Status CheckLayout(std::vector<TensorEntry>* entries, uint64_t data_bytes,
                         std::string_view origin) {
  std::sort(entries->begin(), entries->end(), [](const TensorEntry& a, const TensorEntry& b) {
    return std::pair(a.file_offset, a.size_bytes) < std::pair(b.file_offset, b.size_bytes);
  });
  uint64_t end = 0;
  for (const TensorEntry& entry : *entries) {
    if (entry.file_offset != end) {
      return Invalid(
          origin,
          absl::StrCat("tensor ", Quoted(entry.name), " begins at data byte ", entry.file_offset,
                       entry.file_offset < end ? ", inside the tensor before it, which ends at "
                                               : ", after a hole from ",
                       end));
    }
    end += entry.size_bytes;
  }
  if (end != data_bytes) {
    return Invalid(origin, absl::StrCat("the tensors end at data byte ", end, "; the file holds ",
                                        data_bytes, " bytes of data"));
  }
  return absl::OkStatus();
}

}  // namespace

std::string_view Name(TensorDType dtype) {
  switch (dtype) {
    case TensorDType::kF32: return "F32";
    case TensorDType::kF16: return "F16";
    case TensorDType::kBF16: return "BF16";
    case TensorDType::kF64: return "F64";
  }
  return "unknown";
}

std::string FormatShape(const std::vector<int64_t>& shape) {
  // A shape with more dimensions is a fault of the file, and would fill a screen.
  constexpr size_t kMostShown = 16;
  if (shape.size() <= kMostShown) return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
  return absl::StrCat("[", absl::StrJoin(shape.begin(), shape.begin() + kMostShown, ", "), ", … (",
                      shape.size(), " dimensions)]");
}

absl::StatusOr<std::vector<TensorEntry>> ParseSafetensorsHeader(std::string_view text,
                                                                uint64_t file_bytes,
                                                                std::string_view origin) {
  const uint64_t data_offset = kSafetensorsLengthBytes + text.size();
  if (data_offset > file_bytes) {
    return Invalid(origin, absl::StrCat("the header has ", text.size(), " bytes and the file only ",
                                        file_bytes));
  }
  if (text.empty() || text.front() != '{') {
    return Invalid(origin, "the header does not begin with '{'");
  }
  SPILLWAY_ASSIGN_OR_RETURN(const json header,
                            ParseStrictJson(text, absl::StrCat(std::string(origin), ": header")));
  const uint64_t data_bytes = file_bytes - data_offset;
  std::vector<TensorEntry> entries;
  for (const auto& [name, value] : header.items()) {
    if (name == kMetadataName) {
      SPILLWAY_RETURN_IF_ERROR(CheckMetadata(value, origin));
      continue;
    }
    SPILLWAY_ASSIGN_OR_RETURN(TensorEntry entry, ParseEntry(name, value, data_bytes, origin));
    entries.push_back(std::move(entry));
  }
  SPILLWAY_RETURN_IF_ERROR(CheckLayout(&entries, data_bytes, origin));
  for (TensorEntry& entry : entries) entry.file_offset += data_offset;
  return entries;
}

}  // namespace spillway::hf
