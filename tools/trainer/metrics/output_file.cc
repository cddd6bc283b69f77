// SPDX-License-Identifier: Apache-2.0

#include "tools/trainer/metrics/output_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "src/base/status_macros.h"

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
    fd = open(path.c_str(), O_CLOEXEC | O_APPEND | O_NOCTTY | flags, 0644);
  } while (fd < 0 && errno == EINTR);
  return fd;
}

// Opens a file that exists. Opens only the write end of a pipe, so that a write fails when the
// reader has gone away. Does not wait for a reader.
int OpenExisting(const std::string& path) {
  struct stat info{};
  const bool is_other = stat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode);
  const int fd = OpenRetrying(path, (is_other ? O_WRONLY : O_RDWR) | O_NONBLOCK);
  if (fd >= 0) fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
  return fd;
}

// The path with its symbolic links resolved.
std::string TargetOf(const std::string& path) {
  const std::unique_ptr<char, void (*)(void*)> target(realpath(path.c_str(), nullptr), std::free);
  return target == nullptr ? path : target.get();
}

// Reads the file's first bytes.
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
  // A torn file may be shorter than the text that its kind begins with.
  const std::string_view begins = kind.begins;
  if (begin.size() < begins.size()) return begins.starts_with(begin);
  return begin.starts_with(begins) && begin.find(kind.holds) != std::string_view::npos;
}

}  // namespace

absl::StatusOr<OutputFile> OutputFile::Open(const std::string& path, const Kind& kind,
                                            IfOther if_other) {
  int fd = OpenRetrying(path, O_RDWR | O_CREAT | O_EXCL);
  const bool was_made = fd >= 0;
  if (!was_made && errno == EEXIST) fd = OpenExisting(path);
  if (fd < 0) {
    const int error = errno;
    struct stat link{};
    if (error == ENXIO && stat(path.c_str(), &link) == 0 && S_ISFIFO(link.st_mode)) {
      return absl::UnavailableError(
          absl::StrFormat("open %s: nobody reads this pipe; start its reader first", path));
    }
    if (error != ENOENT || lstat(path.c_str(), &link) != 0) return FileError(error, "open", path);
    return absl::AlreadyExistsError(absl::StrFormat(
        "%s is a symbolic link to nothing; remove it, or name the file itself", path));
  }
  OutputFile file(path, fd, /*is_regular=*/false, was_made);
  struct stat info{};
  if (fstat(fd, &info) != 0) return FileError(errno, "stat", path);
  file.is_regular_ = S_ISREG(info.st_mode);
  file.target_ = TargetOf(path);
  const bool is_taken =
      kind.grows && file.is_regular_ && flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  if (is_taken) {
    return absl::UnavailableError(absl::StrFormat(
        "%s is being written by another process; give another name, or let that run end", path));
  }
  if (!kind.grows) SPILLWAY_RETURN_IF_ERROR(file.Beside().status());
  if (was_made || !file.is_regular_ || if_other == IfOther::kReplace) return file;
  SPILLWAY_ASSIGN_OR_RETURN(const std::string begin, ReadBegin(fd, path));
  if (IsOf(kind, begin)) return file;
  return absl::AlreadyExistsError(absl::StrFormat(
      "%s exists and is not %s; give another name, or --force to replace it", path, kind.name));
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      target_(std::move(other.target_)),
      fd_(std::exchange(other.fd_, -1)),
      is_regular_(other.is_regular_),
      was_made_(std::exchange(other.was_made_, false)),
      is_beside_(std::exchange(other.is_beside_, false)) {}

OutputFile& OutputFile::operator=(OutputFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(target_, other.target_);
  std::swap(fd_, other.fd_);
  std::swap(is_regular_, other.is_regular_);
  std::swap(was_made_, other.was_made_);
  std::swap(is_beside_, other.is_beside_);
  return *this;
}

OutputFile::~OutputFile() {
  if (was_made_ || is_beside_) unlink(path_.c_str());
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

absl::StatusOr<OutputFile> OutputFile::Beside() const {
  if (!is_regular_) {
    const int same = fcntl(fd_, F_DUPFD_CLOEXEC, 0);
    if (same < 0) return FileError(errno, "open", path_);
    return OutputFile(path_, same, is_regular_, /*was_made=*/false);
  }
  struct stat info{};
  if (fstat(fd_, &info) != 0) return FileError(errno, "stat", path_);
  std::string path = target_ + ".new-XXXXXX";
  const int fd = mkostemp(path.data(), O_CLOEXEC);
  if (fd < 0) {
    return absl::UnavailableError(
        absl::StrFormat("%s is replaced whole by a file beside it, and none can be made: %s; %s",
                        path_, std::strerror(errno),
                        errno == EMFILE ? "raise the limit of open files ('ulimit -n')"
                                        : "give a name in a folder that takes files"));
  }
  OutputFile beside(path, fd, is_regular_, /*was_made=*/false);
  beside.is_beside_ = true;
  // Some users may not change a file's owner, and some file systems have no owners or permissions.
  struct stat made{};
  if (fstat(fd, &made) != 0) return FileError(errno, "stat", path);
  const bool is_given = (made.st_uid == info.st_uid && made.st_gid == info.st_gid) ||
                        fchown(fd, info.st_uid, info.st_gid) == 0 ||
                        fchown(fd, static_cast<uid_t>(-1), info.st_gid) == 0;
  // Group permissions are for that group alone, so they are dropped if it could not be set.
  const mode_t rights = info.st_mode & (is_given ? 0777 : 0707);
  if (fchmod(fd, rights) != 0 && errno == EIO) return FileError(errno, "set the rights of", path);
  return beside;
}

absl::Status OutputFile::CopyFrom(const OutputFile& other) {
  std::string piece(size_t{1} << 20, '\0');
  SPILLWAY_RETURN_IF_ERROR(Cut(0));
  for (off_t at = 0;;) {
    const ssize_t got = pread(other.fd_, piece.data(), piece.size(), at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return FileError(errno, "read", other.path_);
    if (got == 0) return absl::OkStatus();
    SPILLWAY_RETURN_IF_ERROR(Append(std::string_view(piece).substr(0, static_cast<size_t>(got))));
    at += got;
  }
}

absl::Status OutputFile::ReplaceWith(OutputFile beside) {
  if (!is_regular_) return absl::OkStatus();
  if (std::rename(beside.path_.c_str(), target_.c_str()) != 0) {
    const bool may_not = errno == EBUSY || errno == EPERM || errno == EACCES || errno == EXDEV;
    return may_not ? CopyFrom(beside) : FileError(errno, "replace", path_);
  }
  was_made_ = false;
  beside.is_beside_ = false;
  std::swap(fd_, beside.fd_);
  return absl::OkStatus();
}

absl::Status OutputFile::Replace(std::string_view text) {
  SPILLWAY_ASSIGN_OR_RETURN(OutputFile beside, Beside());
  if (const absl::Status written = beside.Append(text); !written.ok()) {
    // The caller does not know the file beside, which is removed on return.
    return absl::Status(written.code(),
                        absl::StrReplaceAll(written.message(), {{beside.path_, path_}}));
  }
  return ReplaceWith(std::move(beside));
}

}  // namespace spillway::trainer
