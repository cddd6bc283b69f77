// SPDX-License-Identifier: Apache-2.0

#include "tools/hf/strict_json.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace spillway::hf {
namespace {

using nlohmann::json;

constexpr size_t kMaxDepth = 64;
// A header with half a million tensors has about four million values.
constexpr uint64_t kMaxValues = 4'000'000;
constexpr size_t kExcerptBytes = 80;
constexpr size_t kParserMessageBytes = 200;

// Cuts `text` off after at most `max_bytes`, without splitting a UTF-8 character.
std::string CutOff(std::string text, size_t max_bytes) {
  if (text.size() <= max_bytes) return text;
  size_t end = max_bytes;
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xc0) == 0x80) --end;
  text.resize(end);
  return text + "…";
}

// Returns the value as JSON on one line. Invalid UTF-8 is replaced.
std::string Dump(const json& value) {
  return value.dump(-1, ' ', /*ensure_ascii=*/false, json::error_handler_t::replace);
}

// Returns the library's message without its identifier, "[json.exception.parse_error.101] ". The
// message repeats the text that was read last, so it is escaped and cut off: that text may be long
// and have any bytes.
std::string Readable(const std::string& what) {
  const size_t identifier = what.find("] ");
  const std::string quoted =
      Dump(json(identifier == std::string::npos ? what : what.substr(identifier + 2)));
  return CutOff(quoted.substr(1, quoted.size() - 2), kParserMessageBytes);
}

// Checks the text without building a value, and stops at the first fault.
class Checker : public nlohmann::json_sax<json> {
 public:
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

  bool parse_error(size_t position, const std::string&,
                   const nlohmann::detail::exception& error) override {
    fault_ = absl::StrCat("is not valid JSON at byte ", position, ": ", Readable(error.what()));
    return false;
  }

 private:
  bool Count() {
    if (++num_values_ <= kMaxValues) return true;
    fault_ = absl::StrCat("holds more than ", kMaxValues, " JSON values");
    return false;
  }
  bool Open() {
    if (names_.size() == kMaxDepth) {
      fault_ = absl::StrCat("is nested more than ", kMaxDepth, " deep");
      return false;
    }
    names_.emplace_back();
    return Count();
  }
  bool Close() {
    names_.pop_back();
    return true;
  }

  std::vector<std::unordered_set<std::string>> names_;  // of each open object; empty for arrays
  uint64_t num_values_ = 0;
  std::string fault_;
};

}  // namespace

absl::StatusOr<json> ParseStrictJson(std::string_view text, std::string_view origin) {
  // The library treats a NUL as the end of its input and would not read the text after it.
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    return absl::InvalidArgumentError(
        absl::StrCat(std::string(origin), ": is not valid JSON at byte ", nul, ": a NUL"));
  }
  Checker checker;
  if (!json::sax_parse(text.begin(), text.end(), &checker)) {
    return absl::InvalidArgumentError(absl::StrCat(std::string(origin), ": ", checker.fault()));
  }
  json value = json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) {
    return absl::InvalidArgumentError(absl::StrCat(std::string(origin), ": is not valid JSON"));
  }
  return value;
}

std::string Excerpt(const json& value) { return CutOff(Dump(value), kExcerptBytes); }

std::string Quoted(std::string_view name) { return Excerpt(json(std::string(name))); }

}  // namespace spillway::hf
