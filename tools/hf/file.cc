// SPDX-License-Identifier: Apache-2.0

#include "tools/hf/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "src/base/status_macros.h"

namespace spillway::hf {
namespace {

// Linux limits a request to 2 GiB - 4 KiB in any case.
constexpr size_t kMaxRequestBytes = size_t{1} << 30;
// Some names may be taken by files of a killed process that had the same process id.
constexpr int kMaxNameAttempts = 1000;

absl::Status FileError(int error, std::string_view operation, const std::string& path) {
  absl::Status status =
      absl::ErrnoToStatus(error, absl::StrCat(path, ": ", std::string(operation)));
  // A full disk, a full quota and a file size limit have one code, as callers treat them alike.
  if (error == ENOSPC || error == EDQUOT || error == EFBIG)
    return absl::ResourceExhaustedError(status.message());
  return status;
}

std::string FolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

absl::Status SyncFolder(const std::string& folder) {
  const int descriptor = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (descriptor < 0) return FileError(errno, "cannot be opened", folder);
  const int result = ::fsync(descriptor);
  const int error = errno;
  ::close(descriptor);
  // Some file systems cannot sync a folder. The durability of a rename depends on them.
  return result == 0 || error == EINVAL ? absl::OkStatus()
                                        : FileError(error, "cannot be synced", folder);
}

absl::Status ExistsError(const std::string& path) {
  return absl::AlreadyExistsError(absl::StrCat(path, ": exists and is not overwritten"));
}

// Whether link() failed because the file system has no hard links (vfat, exfat, many of FUSE and
// some of networks), or has no more of them for this file.
bool IsWithoutLinks(int error) {
  return error == EPERM || error == EOPNOTSUPP || error == ENOSYS || error == EMLINK;
}

bool Exists(const std::string& path) {
  struct stat unused;
  return ::lstat(path.c_str(), &unused) == 0;
}

}  // namespace

File::File(std::string path, int descriptor, uint64_t size_bytes)
    : path_(std::move(path)), descriptor_(descriptor), size_bytes_(size_bytes) {}

File::File(File&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      size_bytes_(other.size_bytes_) {}

File::~File() {
  if (descriptor_ >= 0) ::close(descriptor_);
}

absl::StatusOr<File> File::Open(const std::string& path) {
  // O_NONBLOCK: opening a pipe must not wait for a writer. It has no effect on a regular file.
  const int descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (descriptor < 0) return FileError(errno, "cannot be opened", path);
  File file(path, descriptor, 0);
  struct stat status;
  if (::fstat(descriptor, &status) != 0) return FileError(errno, "cannot be examined", path);
  if (!S_ISREG(status.st_mode))
    return absl::FailedPreconditionError(absl::StrCat(path, ": is not a regular file"));
  file.size_bytes_ = static_cast<uint64_t>(status.st_size);
  return file;
}

absl::Status File::ReadAt(uint64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t count = ::pread(descriptor_, out.data(), std::min(out.size(), kMaxRequestBytes),
                                  static_cast<off_t>(offset));
    if (count < 0) {
      if (errno == EINTR) continue;
      return FileError(errno, absl::StrCat("cannot be read at byte ", offset), path_);
    }
    if (count == 0) {
      return absl::FailedPreconditionError(absl::StrCat(path_, ": ends at byte ", offset, ", ",
                                                        out.size(), " bytes early; it had ",
                                                        size_bytes_, " bytes when it was opened"));
    }
    out = out.subspan(static_cast<size_t>(count));
    offset += static_cast<uint64_t>(count);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> ReadTextFile(const std::string& path, uint64_t max_bytes) {
  SPILLWAY_ASSIGN_OR_RETURN(const File file, File::Open(path));
  if (file.size_bytes() > max_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": has ", file.size_bytes(),
                                                   " bytes; at most ", max_bytes, " are expected"));
  }
  std::string text(file.size_bytes(), '\0');
  SPILLWAY_RETURN_IF_ERROR(file.ReadAt(0, std::as_writable_bytes(std::span(text))));
  return text;
}

AtomicFile::AtomicFile(std::string path, std::string temporary_path, int descriptor,
                       IfExists if_exists)
    : path_(std::move(path)),
      temporary_path_(std::move(temporary_path)),
      if_exists_(if_exists),
      descriptor_(descriptor) {}

absl::StatusOr<std::unique_ptr<AtomicFile>> AtomicFile::Create(const std::string& path,
                                                               IfExists if_exists) {
  if (if_exists == IfExists::kFail && Exists(path)) return ExistsError(path);
  // mkstemp is not used, because only the owner may read its files.
  for (int attempt = 0;; ++attempt) {
    std::string temporary_path = absl::StrCat(path, ".partial-", ::getpid(), "-", attempt);
    const int descriptor =
        ::open(temporary_path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (descriptor >= 0) {
      return std::unique_ptr<AtomicFile>(
          new AtomicFile(path, std::move(temporary_path), descriptor, if_exists));
    }
    if (errno != EEXIST || attempt == kMaxNameAttempts)
      return FileError(errno, "cannot be created", path);
  }
}

AtomicFile::~AtomicFile() {
  if (descriptor_ >= 0) ::close(descriptor_);
  if (!committed_) ::unlink(temporary_path_.c_str());
}

absl::Status AtomicFile::Append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count =
        ::write(descriptor_, bytes.data(), std::min(bytes.size(), kMaxRequestBytes));
    if (count < 0) {
      if (errno == EINTR) continue;
      return FileError(errno, "cannot be written", path_);
    }
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
  return absl::OkStatus();
}

absl::Status AtomicFile::Append(std::string_view text) {
  return Append(std::as_bytes(std::span(text)));
}

absl::Status AtomicFile::Sync() {
  if (::fsync(descriptor_) != 0) return FileError(errno, "cannot be synced", path_);
  return absl::OkStatus();
}

absl::Status AtomicFile::Commit() {
  SPILLWAY_RETURN_IF_ERROR(Sync());
  if (::close(std::exchange(descriptor_, -1)) != 0) {
    return FileError(errno, "cannot be closed", path_);
  }
  SPILLWAY_RETURN_IF_ERROR(GiveName());
  committed_ = true;
  return SyncFolder(FolderOf(path_));
}

absl::Status AtomicFile::GiveName() {
  const char* from = temporary_path_.c_str();
  if (if_exists_ == IfExists::kReplace) {
    if (::rename(from, path_.c_str()) == 0) return absl::OkStatus();
    return FileError(errno, "cannot be renamed", path_);
  }
  // Unlike rename(), link() fails if the name is taken.
  if (::link(from, path_.c_str()) == 0) {
    if (::unlink(from) != 0) return FileError(errno, "cannot be removed", temporary_path_);
    return absl::OkStatus();
  }
  if (errno == EEXIST) return ExistsError(path_);
  if (!IsWithoutLinks(errno)) return FileError(errno, "cannot be linked", path_);
  if (::renameat2(AT_FDCWD, from, AT_FDCWD, path_.c_str(), RENAME_NOREPLACE) == 0) {
    return absl::OkStatus();
  }
  if (errno == EEXIST) return ExistsError(path_);
  if (errno != EINVAL && errno != ENOSYS) return FileError(errno, "cannot be renamed", path_);
  // Another process may make the file between this check and the rename. A file system that has
  // neither call offers nothing better.
  if (Exists(path_)) return ExistsError(path_);
  if (::rename(from, path_.c_str()) != 0) return FileError(errno, "cannot be renamed", path_);
  return absl::OkStatus();
}

absl::Status WriteTextFile(const std::string& path, std::string_view text, IfExists if_exists) {
  SPILLWAY_ASSIGN_OR_RETURN(const std::unique_ptr<AtomicFile> file,
                            AtomicFile::Create(path, if_exists));
  SPILLWAY_RETURN_IF_ERROR(file->Append(text));
  return file->Commit();
}

}  // namespace spillway::hf
