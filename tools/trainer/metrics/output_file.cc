// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/metrics/output_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_format.h"
#include "tools/hf/status_macros.h"

namespace spillway::trainer {
namespace {

constexpr size_t kLookedAtBytes = 4096;

absl::Status FileError(int error, const char* operation, const std::string& path) {
  return absl::UnavailableError(
      absl::StrFormat("%s %s: %s", operation, path, std::strerror(error)));
}

int OpenRetrying(const std::string& path, int flags) {
  int fd = -1;
  do {
    fd = open(path.c_str(), O_RDWR | O_CLOEXEC | O_APPEND | O_NOCTTY | flags, 0644);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

// The file's first bytes.
absl::StatusOr<std::string> ReadBegin(int fd, const std::string& path) {
  std::string text(kLookedAtBytes, '\0');
  ssize_t got = -1;
  do {
    got = pread(fd, text.data(), text.size(), 0);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return FileError(errno, "read", path);
  text.resize(static_cast<size_t>(got));
  return text;
}

bool IsOf(const OutputFile::Kind& kind, std::string_view begin) {
  if (begin.empty()) return true;
  // A file may have been torn before it had all that its kind begins with.
  const std::string_view begins = kind.begins;
  if (begin.size() < begins.size()) return begins.starts_with(begin);
  return begin.starts_with(begins) && begin.find(kind.holds) != std::string_view::npos;
}

}  // namespace

absl::StatusOr<OutputFile> OutputFile::Open(const std::string& path, const Kind& kind,
                                            IfOther if_other) {
  int fd = OpenRetrying(path, O_CREAT | O_EXCL);
  const bool was_made = fd >= 0;
  if (!was_made && errno == EEXIST) fd = OpenRetrying(path, 0);
  if (fd < 0) {
    const int error = errno;
    struct stat link{};
    if (error != ENOENT || lstat(path.c_str(), &link) != 0) return FileError(error, "open", path);
    return absl::AlreadyExistsError(absl::StrFormat(
        "%s is a symbolic link to nothing; remove it, or name the file itself", path));
  }
  OutputFile file(path, fd, /*is_regular=*/false, was_made);
  struct stat info{};
  if (fstat(fd, &info) != 0) return FileError(errno, "stat", path);
  file.is_regular_ = S_ISREG(info.st_mode);
  if (was_made || !file.is_regular_ || if_other == IfOther::kReplace) return file;
  SPILLWAY_HF_ASSIGN_OR_RETURN(const std::string begin, ReadBegin(fd, path));
  if (IsOf(kind, begin)) return file;
  return absl::AlreadyExistsError(absl::StrFormat(
      "%s exists and is not %s; give another name, or --force to replace it", path, kind.name));
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(std::exchange(other.fd_, -1)),
      is_regular_(other.is_regular_),
      was_made_(std::exchange(other.was_made_, false)) {}

OutputFile& OutputFile::operator=(OutputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(fd_, other.fd_);
  std::swap(is_regular_, other.is_regular_);
  std::swap(was_made_, other.was_made_);
  return *this;
}

OutputFile::~OutputFile() {
  if (was_made_) unlink(path_.c_str());
  if (fd_ >= 0) close(fd_);
}

absl::Status OutputFile::Cut(int64_t size_bytes) {
  was_made_ = false;
  if (!is_regular_ || ftruncate(fd_, size_bytes) == 0) return absl::OkStatus();
  return FileError(errno, "cut", path_);
}

absl::Status OutputFile::Append(std::string_view text) {
  was_made_ = false;
  struct stat before{};
  const bool knows_size = is_regular_ && fstat(fd_, &before) == 0;
  while (!text.empty()) {
    const ssize_t written = write(fd_, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      const int error = errno;
      if (knows_size && ftruncate(fd_, before.st_size) != 0) return FileError(errno, "cut", path_);
      return FileError(error, "write", path_);
    }
    text.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

}  // namespace spillway::trainer
