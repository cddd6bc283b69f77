// SPDX-License-Identifier: Apache-2.0

#include "tools/hf/npy.h"

#include <algorithm>
#include <array>
#include <bit>
#include <charconv>
#include <cstddef>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/base/status_macros.h"
#include "tools/hf/strict_json.h"

namespace spillway::hf {
namespace {

static_assert(std::endian::native == std::endian::little, "token ids are read without swapping");

constexpr std::string_view kMagic("\x93NUMPY", 6);
constexpr uint64_t kMaxHeaderBytes = 65536;
// Number of two-byte elements that are read and widened at a time.
constexpr size_t kTokensAtATime = 8192;

// Parses NumPy's dictionary, which has three keys, each once, in any order. `fault_` is the first
// error. Parsing continues after it without effect.
class DictParser {
 public:
  DictParser(std::string_view text, std::string_view origin) : text_(text), origin_(origin) {}

  absl::StatusOr<NpyHeader> Parse() {
    Expect('{');
    while (fault_.ok() && !Accept('}')) {
      ParseItem();
      if (!Accept(',') && fault_.ok()) {
        Expect('}');
        break;
      }
    }
    SkipSpace();
    if (fault_.ok() && !text_.empty()) Fail("has text after its dictionary");
    if (!fault_.ok()) return fault_;
    if (!element_bytes_ || !fortran_order_ || !num_elements_) {
      return Error("lacks one of 'descr', 'fortran_order' and 'shape'");
    }
    return NpyHeader{*num_elements_, *element_bytes_};
  }

 private:
  absl::Status Error(std::string_view what) const {
    return absl::InvalidArgumentError(
        absl::StrCat(std::string(origin_), ": NPY header ", std::string(what)));
  }
  void Fail(std::string_view what) {
    if (fault_.ok()) fault_ = Error(what);
    text_ = {};
  }

  void SkipSpace() {
    const size_t first = text_.find_first_not_of(" \t\n\r");
    text_.remove_prefix(first == std::string_view::npos ? text_.size() : first);
  }
  bool Accept(std::string_view token) {
    SkipSpace();
    if (!text_.starts_with(token)) return false;
    text_.remove_prefix(token.size());
    return true;
  }
  bool Accept(char token) { return Accept(std::string_view(&token, 1)); }
  void Expect(char token) {
    if (!Accept(token))
      Fail(absl::StrCat("has no '", std::string(1, token), "' before ", Quoted(text_)));
  }

  std::string_view ParseString() {
    SkipSpace();
    const char quote = text_.empty() ? '\0' : text_.front();
    const size_t end =
        quote == '\'' || quote == '"' ? text_.find(quote, 1) : std::string_view::npos;
    if (end == std::string_view::npos) {
      Fail(absl::StrCat("has no string at ", Quoted(text_)));
      return {};
    }
    const std::string_view value = text_.substr(1, end - 1);
    text_.remove_prefix(end + 1);
    return value;
  }

  void ParseItem() {
    const std::string_view key = ParseString();
    Expect(':');
    if (!fault_.ok()) return;
    if (key == "descr" && !element_bytes_) {
      ParseDescr();
    } else if (key == "fortran_order" && !fortran_order_) {
      ParseOrder();
    } else if (key == "shape" && !num_elements_) {
      ParseShape();
    } else {
      Fail(absl::StrCat("has ", Quoted(key), ", unknown or a second time"));
    }
  }

  void ParseDescr() {
    if (Accept('[')) return Fail("describes a record; token ids are '<u2' or '<u4'");
    const std::string_view descr = ParseString();
    if (descr == "<u2") {
      element_bytes_ = 2;
    } else if (descr == "<u4") {
      element_bytes_ = 4;
    } else {
      Fail(absl::StrCat("has type ", Quoted(descr),
                        "; token ids are '<u2' or '<u4' (little-endian uint16 or uint32)"));
    }
  }

  void ParseOrder() {
    if (Accept("True")) return Fail("has Fortran order; C order is expected");
    if (!Accept("False"))
      return Fail(absl::StrCat("has no False for fortran_order at ", Quoted(text_)));
    fortran_order_ = false;
  }

  void ParseShape() {
    Expect('(');
    SkipSpace();
    uint64_t size = 0;
    const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), size);
    if (error != std::errc())
      return Fail(absl::StrCat("has no length in 64 bits at ", Quoted(text_)));
    text_.remove_prefix(static_cast<size_t>(end - text_.data()));
    Expect(',');
    if (!Accept(')')) return Fail("has more than one dimension; token ids have one");
    num_elements_ = size;
  }

  std::string_view text_;
  const std::string_view origin_;
  absl::Status fault_;
  std::optional<uint64_t> element_bytes_;
  std::optional<bool> fortran_order_;
  std::optional<uint64_t> num_elements_;
};

absl::Status Invalid(const File& file, std::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat(file.path(), ": ", std::string(what)));
}

// Position and length of the dictionary, from the bytes before it: magic, version, length (two
// bytes or four).
struct Prefix {
  uint64_t dict_offset = 0;
  uint64_t dict_bytes = 0;
};

absl::StatusOr<Prefix> ReadPrefix(const File& file) {
  constexpr uint64_t kShortest = 10;
  std::array<char, 12> bytes = {};
  if (file.size_bytes() < bytes.size()) {
    return Invalid(file,
                   absl::StrCat("has ", file.size_bytes(), " bytes, too few for an NPY file"));
  }
  SPILLWAY_RETURN_IF_ERROR(file.ReadAt(0, std::as_writable_bytes(std::span(bytes))));
  if (std::string_view(bytes.data(), kMagic.size()) != kMagic) {
    return Invalid(file, "does not begin with NPY's magic bytes");
  }
  const int major = static_cast<unsigned char>(bytes[6]);
  const int minor = static_cast<unsigned char>(bytes[7]);
  if ((major != 1 && major != 2) || minor != 0) {
    return Invalid(
        file, absl::StrCat("has NPY version ", major, ".", minor, "; 1.0 and 2.0 are supported"));
  }
  uint32_t length = 0;
  const size_t length_bytes = major == 1 ? 2 : 4;
  std::memcpy(&length, bytes.data() + 8, length_bytes);
  const Prefix prefix{major == 1 ? kShortest : kShortest + 2, length};
  if (length > kMaxHeaderBytes || prefix.dict_offset + length > file.size_bytes()) {
    return Invalid(file,
                   absl::StrCat("gives its NPY header ", length, " bytes; at most ",
                                std::min(kMaxHeaderBytes, file.size_bytes() - prefix.dict_offset),
                                " are expected"));
  }
  return prefix;
}

}  // namespace

absl::StatusOr<NpyHeader> ParseNpyHeader(std::string_view dict, std::string_view origin) {
  return DictParser(dict, origin).Parse();
}

NpyFile::NpyFile(File file, const NpyHeader& header, uint64_t data_offset)
    : file_(std::move(file)), header_(header), data_offset_(data_offset) {}

absl::StatusOr<std::unique_ptr<NpyFile>> NpyFile::Open(const std::string& path) {
  SPILLWAY_ASSIGN_OR_RETURN(File file, File::Open(path));
  SPILLWAY_ASSIGN_OR_RETURN(const Prefix prefix, ReadPrefix(file));
  std::string dict(prefix.dict_bytes, '\0');
  SPILLWAY_RETURN_IF_ERROR(
      file.ReadAt(prefix.dict_offset, std::as_writable_bytes(std::span(dict))));
  SPILLWAY_ASSIGN_OR_RETURN(const NpyHeader header, ParseNpyHeader(dict, path));
  const uint64_t data_offset = prefix.dict_offset + prefix.dict_bytes;
  const uint64_t data_bytes = file.size_bytes() - data_offset;
  if (data_bytes % header.element_bytes != 0 ||
      data_bytes / header.element_bytes != header.num_elements) {
    return Invalid(
        file, absl::StrCat("holds ", data_bytes, " bytes of data; its header says ",
                           header.num_elements, " elements of ", header.element_bytes, " bytes"));
  }
  return std::unique_ptr<NpyFile>(new NpyFile(std::move(file), header, data_offset));
}

absl::Status NpyFile::Read(uint64_t offset, std::span<int32_t> out) const {
  if (offset > num_elements() || out.size() > num_elements() - offset) {
    return Invalid(file_, absl::StrCat("has ", num_elements(), " tokens; asked for ", out.size(),
                                       " from ", offset));
  }
  const uint64_t begin = data_offset_ + offset * element_bytes();
  if (element_bytes() == sizeof(int32_t)) {
    SPILLWAY_RETURN_IF_ERROR(file_.ReadAt(begin, std::as_writable_bytes(out)));
    const auto bad = std::find_if(out.begin(), out.end(), [](int32_t id) { return id < 0; });
    if (bad == out.end()) return absl::OkStatus();
    return Invalid(file_, absl::StrCat("token ", offset + static_cast<uint64_t>(bad - out.begin()),
                                       " is ", static_cast<uint32_t>(*bad), "; at most ",
                                       std::numeric_limits<int32_t>::max(), " is possible"));
  }
  std::array<uint16_t, kTokensAtATime> stored;
  for (size_t done = 0; done < out.size();) {
    const std::span<uint16_t> piece =
        std::span(stored).first(std::min(stored.size(), out.size() - done));
    SPILLWAY_RETURN_IF_ERROR(
        file_.ReadAt(begin + done * sizeof(uint16_t), std::as_writable_bytes(piece)));
    std::copy(piece.begin(), piece.end(), out.begin() + static_cast<ptrdiff_t>(done));
    done += piece.size();
  }
  return absl::OkStatus();
}

}  // namespace spillway::hf
