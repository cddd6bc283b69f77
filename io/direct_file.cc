// SPDX-License-Identifier: Apache-2.0
//
// Opens with O_DIRECT first, and buffered if the open fails with EINVAL because of that flag.

#include "io/direct_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "src/base/errno_status.h"
#include "src/base/file_descriptor.h"

namespace spillway::io {
namespace {

int OpenRetrying(const std::string& path, int flags, mode_t mode) {
  int fd;
  do {
    fd = ::open(path.c_str(), flags, mode);
  } while (fd < 0 && errno == EINTR);
  return base::AboveStandardStreams(fd);
}

std::string Folder(const std::string& path) {
  const std::string folder = std::filesystem::path(path).parent_path().string();
  return folder.empty() ? "." : folder;
}

}  // namespace

DirectFile& DirectFile::operator=(DirectFile&& other) noexcept {
  if (this != &other) {
    Close();
    fd_ = std::exchange(other.fd_, -1);
    is_direct_ = other.is_direct_;
    path_ = std::move(other.path_);
  }
  return *this;
}

void DirectFile::Close() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

absl::StatusOr<DirectFile> OpenDirect(const std::string& path, int flags, const Announce& announce,
                                      mode_t mode) {
  flags |= O_CLOEXEC;
  int fd = OpenRetrying(path, flags | O_DIRECT, mode);
  if (fd >= 0) return DirectFile(fd, /*is_direct=*/true, path);
  if (errno == EINVAL) {
    // The refused open may have created the file already; O_EXCL would then fail.
    if ((flags & O_CREAT) && (flags & O_EXCL) && ::access(path.c_str(), F_OK) == 0)
      flags &= ~O_EXCL;
    fd = OpenRetrying(path, flags, mode);
    if (fd >= 0) {
      if (announce) {
        announce(absl::StrCat("O_DIRECT is refused in ", Folder(path),
                              ": transfers there go through the page cache"));
      }
      return DirectFile(fd, /*is_direct=*/false, path);
    }
  }
  return base::ErrnoToStatus(errno, absl::StrCat("open ", path));
}

}  // namespace spillway::io
