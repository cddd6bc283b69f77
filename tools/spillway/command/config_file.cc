// SPDX-License-Identifier: Apache-2.0

#include "tools/spillway/command/config_file.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"
#include "src/base/status_macros.h"

namespace spillway::command {
namespace {

constexpr char kAcceptedLine[] =
    "a line is empty, a comment after #, or key = value; a value is \"text\", 'text', a number, "
    "true, false or [A, B]";
// The characters that may follow a backslash. u takes 4 hex digits, U takes 8.
constexpr std::string_view kEscapes = "btnfr\"\\uU";

bool IsControl(char c) { return absl::ascii_iscntrl(static_cast<unsigned char>(c)); }

absl::Status NotAccepted(std::string_view what) {
  return absl::InvalidArgumentError(absl::StrFormat("%s; %s", std::string(what), kAcceptedLine));
}

// Whether `word` is a number in both TOML and JSON.
bool IsNumber(std::string_view word) {
  return word.find_first_not_of("+-.0123456789eE") == std::string_view::npos &&
         nlohmann::json::accept(word);
}

// Reads one line, from left to right.
class LineReader {
 public:
  explicit LineReader(std::string_view line) : rest_(line) {}

  // Returns an entry without a key if the line has none.
  absl::StatusOr<ConfigEntry> Read() {
    SPILLWAY_RETURN_IF_ERROR(CheckBytes());
    ConfigEntry entry;
    if (AtEnd()) return entry;
    if (rest_.front() == '[') {
      return NotAccepted("a [section] is not accepted: flags stand in none");
    }
    entry.key = std::string(TakeWhile([](char c) {
      return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '-' || c == '_';
    }));
    if (entry.key.empty() || AtEnd() || !Take('=')) return NotAccepted("this is no key = value");
    SkipBlanks();
    SPILLWAY_RETURN_IF_ERROR(ReadValues(&entry));
    if (!AtEnd()) return NotAccepted("there is more behind the value");
    return entry;
  }

 private:
  absl::Status CheckBytes() const {
    const auto control =
        std::find_if(rest_.begin(), rest_.end(), [](char c) { return IsControl(c) && c != '\t'; });
    if (control != rest_.end()) {
      return NotAccepted(absl::StrFormat(
          "a control character is not accepted: in \"text\" write it as \\u%04x", *control));
    }
    return QuoteForConfig(rest_).status();
  }

  absl::Status ReadValues(ConfigEntry* entry) {
    entry->is_array = Take('[');
    do {
      SkipBlanks();
      if (entry->is_array && !entry->values.empty() && Take(']')) return absl::OkStatus();
      SPILLWAY_ASSIGN_OR_RETURN(std::string value, ReadValue());
      entry->values.push_back(std::move(value));
      SkipBlanks();
    } while (entry->is_array && Take(','));
    if (entry->is_array && !Take(']')) return NotAccepted("the array has no ] on its line");
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> ReadValue() {
    if (Take('"')) return ReadText();
    if (Take('\'')) return ReadLiteral();
    const std::string_view word = TakeWhile(
        [](char c) { return std::string_view(" \t,]#").find(c) == std::string_view::npos; });
    if (word == "true" || word == "false" || IsNumber(word)) return std::string(word);
    return NotAccepted(word.empty() ? "a value is missing" : "text needs quotes");
  }

  absl::StatusOr<std::string> ReadText() {
    size_t end = 0;
    for (; end < rest_.size() && rest_[end] != '"'; ++end) {
      if (rest_[end] != '\\') continue;
      ++end;
      if (end < rest_.size() && kEscapes.find(rest_[end]) == std::string_view::npos) {
        return NotAccepted(
            "a backslash in \"text\" stands before one of b t n f r \" \\ u U; \\\\ is a "
            "backslash");
      }
    }
    if (end >= rest_.size()) return NotAccepted("the text has no closing \"");
    std::string value;
    if (!absl::CUnescape(absl::string_view(rest_.data(), end), &value) ||
        value.find('\0') != std::string::npos) {
      return NotAccepted("\\uXXXX or \\UXXXXXXXX is the number of a character other than 0");
    }
    rest_.remove_prefix(end + 1);
    return value;
  }

  absl::StatusOr<std::string> ReadLiteral() {
    const size_t end = rest_.find('\'');
    if (end == std::string_view::npos) return NotAccepted("the text has no closing '");
    const std::string value(rest_.substr(0, end));
    rest_.remove_prefix(end + 1);
    return value;
  }

  bool Take(char c) {
    if (!rest_.starts_with(c)) return false;
    rest_.remove_prefix(1);
    return true;
  }

  template <typename Predicate>
  std::string_view TakeWhile(const Predicate& belongs) {
    const auto end = std::find_if_not(rest_.begin(), rest_.end(), belongs);
    const std::string_view taken = rest_.substr(0, static_cast<size_t>(end - rest_.begin()));
    rest_.remove_prefix(taken.size());
    return taken;
  }

  void SkipBlanks() {
    TakeWhile([](char c) { return c == ' ' || c == '\t'; });
  }

  // Skips blanks. Whether a comment or the end of the line follows.
  bool AtEnd() {
    SkipBlanks();
    return rest_.empty() || rest_.front() == '#';
  }

  std::string_view rest_;
};

}  // namespace

absl::StatusOr<std::vector<ConfigEntry>> ParseConfig(std::string_view text) {
  std::vector<ConfigEntry> entries;
  std::map<std::string, int> line_of_key;
  int number = 0;
  constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";
  if (text.starts_with(kByteOrderMark)) text.remove_prefix(kByteOrderMark.size());
  for (absl::string_view line : absl::StrSplit(absl::string_view(text.data(), text.size()), '\n')) {
    ++number;
    if (absl::EndsWith(line, "\r")) line.remove_suffix(1);
    absl::StatusOr<ConfigEntry> entry =
        LineReader(std::string_view(line.data(), line.size())).Read();
    if (!entry.ok()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("line %d: %s", number, std::string(entry.status().message())));
    }
    if (entry->key.empty()) continue;
    entry->line = number;
    const auto [first, is_new] = line_of_key.emplace(entry->key, number);
    if (!is_new) {
      return absl::InvalidArgumentError(
          absl::StrFormat("line %d: '%.40s' is there twice, first in line %d; leave one out",
                          number, entry->key, first->second));
    }
    entries.push_back(*std::move(entry));
  }
  return entries;
}

// JSON quotes text as TOML does, except for one control character.
absl::StatusOr<std::string> QuoteForConfig(std::string_view value) {
  try {
    return absl::StrReplaceAll(nlohmann::json(value).dump(), {{"\x7f", "\\u007f"}});
  } catch (const nlohmann::json::type_error&) {
    return absl::InvalidArgumentError("this is not UTF-8, and TOML holds nothing else");
  }
}

}  // namespace spillway::command
