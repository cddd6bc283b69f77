// SPDX-License-Identifier: Apache-2.0
//
// A sync alone is not enough: if an earlier sync of the log failed, the kernel has reported that
// once and counts the bytes as written from then on. So the log is written over itself first.

#include "io/store/catalog_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <vector>

#include "absl/strings/str_cat.h"
#include "io/store/store_folder.h"
#include "src/base/file_descriptor.h"
#include "src/base/status_macros.h"

namespace spillway::io {
namespace {

constexpr uint64_t kPieceBytes = uint64_t{1} << 20;

// Calls `call` until no signal interrupts it.
template <typename Call>
auto Retrying(const Call& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

class OpenFile {
 public:
  OpenFile(const std::string& path, int flags)
      : fd_(base::AboveStandardStreams(
            static_cast<int>(Retrying([&] { return ::open(path.c_str(), flags | O_CLOEXEC); })))) {}
  OpenFile(const OpenFile&) = delete;
  OpenFile& operator=(const OpenFile&) = delete;
  ~OpenFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  int fd() const { return fd_; }

 private:
  const int fd_;
};

// Writes a file's bytes over themselves. Where the disk has no room for that, as on a file system
// that writes nothing in place, the bytes stay as they are.
absl::Status WriteOverItself(int fd, uint64_t size_bytes, const std::string& path) {
  std::vector<std::byte> piece(std::min(size_bytes, kPieceBytes));
  for (uint64_t offset = 0; offset < size_bytes;) {
    const size_t wanted = std::min<uint64_t>(piece.size(), size_bytes - offset);
    const auto at = static_cast<off_t>(offset);
    const ssize_t got = Retrying([&] { return ::pread(fd, piece.data(), wanted, at); });
    if (got < 0) return FileErrorToStatus(errno, absl::StrCat("read ", path, " at ", offset));
    if (got == 0) break;
    const ssize_t written =
        Retrying([&] { return ::pwrite(fd, piece.data(), static_cast<size_t>(got), at); });
    if (written < 0 && (errno == ENOSPC || errno == EDQUOT)) break;
    if (written < 0) return FileErrorToStatus(errno, absl::StrCat("write ", path, " at ", offset));
    offset += static_cast<uint64_t>(written);
  }
  return absl::OkStatus();
}

absl::Status SyncFolderOf(const std::string& path) {
  const std::string parent = std::filesystem::path(path).parent_path().string();
  const std::string name = parent.empty() ? "." : parent;
  const OpenFile folder(name, O_RDONLY | O_DIRECTORY);
  if (folder.fd() < 0) return FileErrorToStatus(errno, absl::StrCat("open folder ", name));
  if (::fsync(folder.fd()) == 0) return absl::OkStatus();
  return FileErrorToStatus(errno, absl::StrCat("sync ", name));
}

}  // namespace

absl::Status MakeLogDurable(const std::string& catalog_path) {
  const std::string path = catalog_path + "-wal";
  const OpenFile log(path, O_RDWR | O_NOFOLLOW | O_NONBLOCK);
  if (log.fd() < 0 && errno == ENOENT) return absl::OkStatus();
  if (log.fd() < 0) return FileErrorToStatus(errno, absl::StrCat("open ", path));
  struct stat info;
  if (::fstat(log.fd(), &info) != 0) return FileErrorToStatus(errno, absl::StrCat("stat ", path));
  if (!S_ISREG(info.st_mode)) return FileErrorToStatus(ENXIO, absl::StrCat("open ", path));
  if (info.st_size == 0) return absl::OkStatus();
  SPILLWAY_RETURN_IF_ERROR(WriteOverItself(log.fd(), static_cast<uint64_t>(info.st_size), path));
  if (::fdatasync(log.fd()) != 0) {
    return FileErrorToStatus(
        errno, absl::StrCat("sync ", path, ", which holds commits of a process that was killed"));
  }
  return SyncFolderOf(path);
}

}  // namespace spillway::io
