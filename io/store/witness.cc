// SPDX-License-Identifier: Apache-2.0

#include "io/store/witness.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <span>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "io/checksum.h"
#include "src/base/status_macros.h"

namespace spillway::io {
namespace {

constexpr char kTitle[] = "Spillway commit\n";
constexpr int kVersion = 1;
constexpr size_t kMaxBytes = 512;  // one sector: it is written whole or not at all

int OpenWitness(const std::string& path, int flags) {
  int fd;
  do {
    fd = ::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0644);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

}  // namespace

Witness::Witness(const std::vector<StoreFolder>& folders, std::string store_id)
    : store_id_(std::move(store_id)) {
  for (const StoreFolder& folder : folders)
    if (folder.is_there()) files_.push_back({&folder});
}

Witness::~Witness() {
  for (const File& file : files_)
    if (file.fd >= 0) ::close(file.fd);
}

// Each line has the same length whatever the content, so writing the file over itself leaves
// nothing of what was there.
std::string Witness::Format(const Content& content) {
  std::string text = absl::StrFormat(
      "%sversion %d\nstore %s\nnumber %020d\nrevision %020d\ndigest %016x\n", kTitle, kVersion,
      content.store_id, content.number, content.revision, content.digest);
  absl::StrAppendFormat(&text, "checksum %016x\n",
                        Checksum(std::as_bytes(std::span(text.data(), text.size()))));
  return text;
}

std::optional<Witness::Content> Witness::Parse(const std::string& text) {
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  if (lines.size() != 8) return std::nullopt;
  const auto value = [&](size_t line, absl::string_view key) -> std::string {
    const std::vector<std::string> words = absl::StrSplit(lines[line], ' ');
    return words.size() == 2 && words[0] == key ? words[1] : "";
  };
  Content content;
  content.store_id = value(2, "store");
  if (!absl::SimpleAtoi(value(3, "number"), &content.number) ||
      !absl::SimpleAtoi(value(4, "revision"), &content.revision) ||
      !absl::SimpleHexAtoi(value(5, "digest"), &content.digest))
    return std::nullopt;
  // The text must be equal to what these fields are written as, so nothing else needs checking.
  return Format(content) == text ? std::optional(std::move(content)) : std::nullopt;
}

absl::Status Witness::Check(const std::optional<CatalogCommit>& last) const {
  for (const File& file : files_)
    SPILLWAY_RETURN_IF_ERROR(CheckFile(file.folder->WitnessPath(), last));
  return absl::OkStatus();
}

absl::Status Witness::CheckFile(const std::string& path,
                                const std::optional<CatalogCommit>& last) const {
  const int fd = OpenWitness(path, O_RDONLY);
  // A file that is not there, or that its device cannot read, says nothing.
  if (fd < 0 && (errno == ENOENT || errno == EIO)) return absl::OkStatus();
  if (fd < 0) return FileErrorToStatus(errno, absl::StrCat("open ", path));
  std::string text(kMaxBytes, '\0');
  ssize_t size;
  do {
    size = ::pread(fd, text.data(), text.size(), 0);
  } while (size < 0 && errno == EINTR);
  const int error = errno;
  ::close(fd);
  if (size < 0 && error == EIO) return absl::OkStatus();
  if (size < 0) return FileErrorToStatus(error, absl::StrCat("read ", path));
  text.resize(static_cast<size_t>(size));
  // The file is empty or zeros, because a power cut came between making and writing it, or is not
  // Spillway's.
  if (!absl::StartsWith(text, kTitle)) return absl::OkStatus();
  const std::string advice = absl::StrCat(
      "; restore the whole store from a copy, or remove spillway-commit from all its "
      "folders to go on from what the catalog has: ",
      last ? absl::StrCat("commit ", last->number) : std::string("no commit"));
  const std::optional<Content> content = Parse(text);
  if (!content) return absl::DataLossError(absl::StrCat(path, " is damaged", advice));
  if (content->store_id != store_id_) {
    return absl::DataLossError(absl::StrCat(path, " is of store ", content->store_id,
                                            ", but the catalog is of store ", store_id_, advice));
  }
  const bool is_older = !last || last->revision < content->revision;
  const bool differs = last && last->revision == content->revision &&
                       (last->number != content->number || last->digest != content->digest);
  if (!is_older && !differs) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat(
      path, " tells of commit ", content->number, ", revision ", content->revision,
      ", but the catalog is ", is_older ? "older" : "another",
      " (the first folder, or spillway-catalog.sqlite in it, was replaced by a copy, or the end of "
      "the catalog's log is damaged)",
      advice));
}

// Opens or makes the folder's file; -1 if that fails, or if the file is another store's, which has
// taken the folder's place.
int Witness::Open(const StoreFolder& folder) {
  if (!folder.CheckIsThere().ok()) return -1;
  const int fd = OpenWitness(folder.WitnessPath(), O_RDWR | O_CREAT);
  if (fd < 0 || folder.CheckIsThere().ok()) return fd;
  ::close(fd);
  return -1;
}

void Witness::Write(const CatalogCommit& last) {
  const std::string text = Format({store_id_, last.number, last.revision, last.digest});
  for (File& file : files_) {
    if (file.fd < 0) file.fd = Open(*file.folder);
    if (file.fd < 0) continue;
    ssize_t written;
    do {
      written = ::pwrite(file.fd, text.data(), text.size(), 0);
    } while (written < 0 && errno == EINTR);
  }
}

}  // namespace spillway::io
