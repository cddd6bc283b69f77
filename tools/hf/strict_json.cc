// SPDX-License-Identifier: Apache-2.0

#include "tools/hf/strict_json.h"

#include <cctype>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace spillway::hf {
namespace {

using nlohmann::json;

// A header with half a million tensors has about four million values.
constexpr uint64_t kMaxValues = 4'000'000;
constexpr size_t kExcerptBytes = 80;

// Cuts `text` off after at most `max_bytes`, without splitting a UTF-8 character.
std::string CutOff(std::string text, size_t max_bytes) {
  if (text.size() <= max_bytes) return text;
  size_t end = max_bytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  text.resize(end);
  return text + "…";
}

// Returns the shortest text that reads as `number` again, written as Python does.
std::string NumberText(double number) {
  char scientific[40];
  const auto end = std::to_chars(std::begin(scientific), std::end(scientific), number,
                                 std::chars_format::scientific);
  const std::string_view text(scientific, static_cast<size_t>(end.ptr - scientific));
  const size_t e = text.find('e');
  const int exponent = std::stoi(std::string(text.substr(e + 1)));
  if (exponent < -4 || exponent >= 16) return std::string(text);
  std::string fixed(400, '\0');
  const auto last =
      std::to_chars(fixed.data(), fixed.data() + fixed.size(), number, std::chars_format::fixed);
  fixed.resize(static_cast<size_t>(last.ptr - fixed.data()));
  return fixed.find('.') == fixed.npos ? fixed + ".0" : fixed;
}

// Appends the value as JSON on one line, with invalid UTF-8 replaced, until there is more than an
// excerpt has.
void AppendJson(const json& value, std::string* out) {
  if (out->size() > kExcerptBytes) return;
  if (value.is_number_float()) {
    out->append(NumberText(value.get<double>()));
  } else if (value.is_number_integer() && !value.is_number_unsigned() && value == 0) {
    out->append("-0.0");  // the text was "-0", which is no whole number
  } else if (value.is_structured()) {
    const bool is_object = value.is_object();
    out->push_back(is_object ? '{' : '[');
    bool is_first = true;
    for (const auto& [key, item] : value.items()) {
      if (!is_first) out->push_back(',');
      if (is_object)
        absl::StrAppend(out, json(key).dump(-1, ' ', false, json::error_handler_t::replace), ":");
      AppendJson(item, out);
      is_first = false;
    }
    out->push_back(is_object ? '}' : ']');
  } else {
    out->append(value.dump(-1, ' ', /*ensure_ascii=*/false, json::error_handler_t::replace));
  }
}

// Returns where the first ill-formed sequence of UTF-8 begins; none if there is none.
std::optional<size_t> FindNoUtf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    const auto byte = [&](size_t i) {
      return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : 0u;
    };
    const unsigned first = byte(0);
    size_t length = first < 0x80 ? 1 : first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    if (first > 0xf4) length = 0;
    // Of the second byte: no longer form than needed, no surrogate, nothing past U+10FFFF.
    const unsigned least = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    const unsigned most = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    if (length == 0 || (length > 1 && (byte(1) < least || byte(1) > most))) return at;
    for (size_t i = 2; i < length; ++i) {
      if ((byte(i) & 0xc0) != 0x80) return at;
    }
    at += length;
  }
  return std::nullopt;
}

// Finds where a text stops being JSON, which the library does not say exactly: at the byte where a
// token or, in a string, a character or an escape begins that cannot be there.
class SyntaxScanner {
 public:
  explicit SyntaxScanner(std::string_view text)
      : text_(text), at_(text.starts_with("\xef\xbb\xbf") ? 3 : 0) {}

  size_t FindFault() {
    if (ReadValue()) {
      while (!open_.empty() && ReadRest()) {
      }
      if (open_.empty()) SkipSpace();
    }
    return at_;
  }

 private:
  char Peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void SkipSpace() {
    while (at_ < text_.size() && std::string_view(" \t\n\r").find(text_[at_]) != text_.npos) ++at_;
  }
  bool Take(char wanted) {
    SkipSpace();
    if (at_ == text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }

  // Reads a value, of a list or an object only the start.
  bool ReadValue() {
    SkipSpace();
    for (const char opening : {'[', '{'}) {
      if (!Take(opening)) continue;
      if (open_.size() == kMaxJsonDepth) return false;
      open_.push_back(opening);
      if (Take(opening == '[' ? ']' : '}')) {
        open_.pop_back();
        return true;
      }
      return opening == '[' ? ReadValue() : ReadMember();
    }
    return Peek() == '"' ? ReadString() : ReadWord();
  }

  // Reads what follows a value in the innermost list or object.
  bool ReadRest() {
    if (Take(open_.back() == '[' ? ']' : '}')) {
      open_.pop_back();
      return true;
    }
    if (!Take(',')) return false;
    return open_.back() == '[' ? ReadValue() : ReadMember();
  }

  bool ReadMember() {
    SkipSpace();
    return Peek() == '"' && ReadString() && Take(':') && ReadValue();
  }

  bool ReadString() {
    ++at_;
    while (Peek() != '"') {
      const size_t length = Peek() == '\\' ? EscapeLength() : 1;
      if (at_ == text_.size() || static_cast<unsigned char>(Peek()) < 0x20 || length == 0)
        return false;
      at_ += length;
    }
    ++at_;
    return true;
  }

  // Returns the bytes of an escape, of a surrogate with its pair; 0 if it is none.
  size_t EscapeLength() const {
    const std::string_view rest = text_.substr(at_ + 1);
    if (rest.empty()) return 0;
    if (rest[0] != 'u') return std::string_view("\"\\/bfnrt").find(rest[0]) == rest.npos ? 0 : 2;
    const std::optional<unsigned> code = HexAt(at_ + 2);
    if (!code || (*code >= 0xdc00 && *code < 0xe000)) return 0;
    if (*code < 0xd800 || *code >= 0xe000) return 6;
    const bool has_pair = text_.substr(at_ + 6, 2) == "\\u";
    const std::optional<unsigned> low = has_pair ? HexAt(at_ + 8) : std::nullopt;
    return low && *low >= 0xdc00 && *low < 0xe000 ? 12 : 0;
  }

  std::optional<unsigned> HexAt(size_t at) const {
    unsigned code = 0;
    if (at + 4 > text_.size()) return std::nullopt;
    for (const char c : text_.substr(at, 4)) {
      if (std::isxdigit(static_cast<unsigned char>(c)) == 0) return std::nullopt;
      code = code * 16 + static_cast<unsigned>(c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10);
    }
    return code;
  }

  bool ReadWord() {
    for (const std::string_view word : {"true", "false", "null"}) {
      if (!text_.substr(at_).starts_with(word)) continue;
      at_ += word.size();
      return true;
    }
    const auto digits_from = [&](size_t from) {
      size_t to = from;
      while (to < text_.size() && text_[to] >= '0' && text_[to] <= '9') ++to;
      return to;
    };
    const size_t begin = Peek() == '-' ? at_ + 1 : at_;
    size_t end = digits_from(begin);
    if (end == begin) return false;
    if (text_[begin] == '0') end = begin + 1;
    if (end < text_.size() && text_[end] == '.' && digits_from(end + 1) > end + 1)
      end = digits_from(end + 1);
    if (end < text_.size() && (text_[end] | 0x20) == 'e') {
      const bool has_sign =
          end + 1 < text_.size() && (text_[end + 1] == '+' || text_[end + 1] == '-');
      const size_t exponent = end + (has_sign ? 2 : 1);
      if (digits_from(exponent) > exponent) end = digits_from(exponent);
    }
    at_ = end;
    return true;
  }

  const std::string_view text_;
  size_t at_;
  std::string open_;  // the lists and objects around, by their first characters
};

// Checks the text without building a value, and stops at the first fault.
class Checker : public nlohmann::json_sax<json> {
 public:
  explicit Checker(std::string_view text) : text_(text) {}

  const std::string& fault() const { return fault_; }

  bool null() override { return Count(); }
  bool boolean(bool) override { return Count(); }
  bool number_integer(number_integer_t) override { return Count(); }
  bool number_unsigned(number_unsigned_t) override { return Count(); }
  bool number_float(number_float_t, const string_t&) override { return Count(); }
  bool string(string_t&) override { return Count(); }
  bool binary(binary_t&) override { return Count(); }
  bool start_object(size_t) override { return Open(); }
  bool start_array(size_t) override { return Open(); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }

  bool key(string_t& name) override {
    if (names_.back().insert(name).second) return true;
    fault_ = absl::StrCat("holds the name ", Quoted(name), " twice");
    return false;
  }

  bool parse_error(size_t, const std::string& token,
                   const nlohmann::detail::exception& error) override {
    constexpr int kOutOfRange = 406;
    if (error.id == kOutOfRange) {
      fault_ = absl::StrCat("holds the number ", CutOff(token, kExcerptBytes),
                            ", which is too large for a 64-bit float");
    } else {
      fault_ = absl::StrCat("is not valid JSON at byte ", SyntaxScanner(text_).FindFault());
    }
    return false;
  }

 private:
  bool Count() {
    if (++num_values_ <= kMaxValues) return true;
    fault_ = absl::StrCat("holds more than ", kMaxValues, " JSON values");
    return false;
  }
  bool Open() {
    if (names_.size() == kMaxJsonDepth) {
      fault_ = absl::StrCat("is nested more than ", kMaxJsonDepth, " deep");
      return false;
    }
    names_.emplace_back();
    return Count();
  }
  bool Close() {
    names_.pop_back();
    return true;
  }

  const std::string_view text_;
  std::vector<std::unordered_set<std::string>> names_;  // of each open object; empty for arrays
  uint64_t num_values_ = 0;
  std::string fault_;
};

}  // namespace

absl::StatusOr<json> ParseStrictJson(std::string_view text, std::string_view origin) {
  const auto fault = [&](const std::string& what) {
    return absl::InvalidArgumentError(absl::StrCat(std::string(origin), ": ", what));
  };
  if (const auto at = FindNoUtf8(text)) {
    return fault(absl::StrFormat("is not UTF-8: byte 0x%02x at offset %d",
                                 static_cast<unsigned char>(text[*at]), *at));
  }
  // The library treats a NUL as the end of its input and would not read the text after it.
  if (text.find('\0') != std::string_view::npos)
    return fault(absl::StrCat("is not valid JSON at byte ", SyntaxScanner(text).FindFault()));
  Checker checker(text);
  if (!json::sax_parse(text.begin(), text.end(), &checker)) return fault(checker.fault());
  json value = json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) return fault("is not valid JSON");
  return value;
}

std::string Excerpt(const json& value) {
  std::string text;
  AppendJson(value, &text);
  return CutOff(std::move(text), kExcerptBytes);
}

std::string Quoted(std::string_view name) { return Excerpt(json(std::string(name))); }

}  // namespace spillway::hf
