// SPDX-License-Identifier: Apache-2.0

#include "io/store/folder_identity.h"

#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "io/checksum.h"

namespace spillway::io {
namespace {

constexpr int kIdentityVersion = 2;
constexpr int kSparseIdentityVersion = 3;  // the same text, of a sparse store

uint64_t HashText(std::string_view text) {
  return Checksum(std::as_bytes(std::span(text.data(), text.size())));
}

// Returns the value of a line "key value", or none for another line.
std::optional<std::string> Value(absl::string_view line, absl::string_view key) {
  if (line.size() <= key.size() || line.substr(0, key.size()) != key || line[key.size()] != ' ')
    return std::nullopt;
  return std::string(line.substr(key.size() + 1));
}

// Parses a file of this version. The text must equal what FormatIdentity writes for the parsed
// fields, so nothing else needs to be checked.
std::optional<FolderIdentity> ParseFields(const std::string& text) {
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  if (lines.size() != 8) return std::nullopt;
  FolderIdentity identity;
  uint32_t index = 0;
  uint32_t num_folders = 0;
  const auto store = Value(lines[2], "store");
  const auto folder = Value(lines[3], "folder");
  const auto folders = Value(lines[4], "folders");
  const auto scratch = Value(lines[5], "scratch");
  if (!store || !folder || !folders || !scratch) return std::nullopt;
  if (!absl::SimpleAtoi(*folder, &index) || !absl::SimpleAtoi(*folders, &num_folders))
    return std::nullopt;
  identity.store_id = *store;
  identity.index = static_cast<uint16_t>(index);
  identity.num_folders = static_cast<uint16_t>(num_folders);
  identity.scratch = *scratch == "1";
  identity.sparse = lines[1] == absl::StrCat("version ", kSparseIdentityVersion);
  if (identity.index >= identity.num_folders || (identity.sparse && !identity.scratch) ||
      FormatIdentity(identity) != text)
    return std::nullopt;
  return identity;
}

}  // namespace

std::string FormatIdentity(const FolderIdentity& identity) {
  std::string text = absl::StrCat(
      kIdentityTitle, "\nversion ", identity.sparse ? kSparseIdentityVersion : kIdentityVersion,
      "\nstore ", identity.store_id, "\nfolder ", identity.index, "\nfolders ",
      identity.num_folders, "\nscratch ", identity.scratch ? 1 : 0, "\n");
  absl::StrAppend(&text, absl::StrFormat("checksum %016x\n", HashText(text)));
  return text;
}

absl::StatusOr<FolderIdentity> ParseIdentity(const std::string& text, const std::string& path) {
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  if (!text.empty() && lines[0] != kIdentityTitle) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, " was not made by Spillway; choose another folder, or move that file away"));
  }
  const auto version = lines.size() > 1 ? Value(lines[1], "version") : std::nullopt;
  int number = 0;
  if (version && absl::SimpleAtoi(*version, &number) && number != kIdentityVersion &&
      number != kSparseIdentityVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        path, " has store format ", number, "; this Spillway reads and writes format ",
        kIdentityVersion, number < kIdentityVersion ? " and cannot upgrade an older store" : "",
        ". Use the version that made the store, or another folder"));
  }
  std::optional<FolderIdentity> identity = ParseFields(text);
  if (!identity) {
    return absl::DataLossError(
        absl::StrCat(path, " is damaged (", text.size(),
                     " bytes that are no identity); restore the store from a copy, or "
                     "remove it and start over"));
  }
  return *std::move(identity);
}

}  // namespace spillway::io
