// SPDX-License-Identifier: Apache-2.0
//
// Opening files for transfers that pass the page cache by: O_DIRECT where the file system has it,
// buffered where it has not, and the caller told so. Reading and writing them is the IoEngine's.

#ifndef SPILLWAY_IO_DIRECT_FILE_H_
#define SPILLWAY_IO_DIRECT_FILE_H_

#include <sys/types.h>

#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"

namespace spillway::io {

// Takes one sentence about something that the machine could not give, and what is used instead.
using Announce = std::function<void(std::string_view)>;

// An open file that closes itself. Move-only; any thread.
class DirectFile {
 public:
  DirectFile() = default;
  DirectFile(int fd, bool is_direct, std::string path)
      : fd_(fd), is_direct_(is_direct), path_(std::move(path)) {}
  DirectFile(DirectFile&& other) noexcept { *this = std::move(other); }
  DirectFile& operator=(DirectFile&& other) noexcept;
  ~DirectFile() { Close(); }

  int fd() const { return fd_; }  // -1: none
  // False: the file system refused O_DIRECT, transfers go through the page cache.
  bool is_direct() const { return is_direct_; }
  const std::string& path() const { return path_; }

  void Close();

 private:
  int fd_ = -1;
  bool is_direct_ = false;
  std::string path_;
};

// Opens `path` with `flags` (O_RDWR, O_CREAT, ...; O_DIRECT and O_CLOEXEC are added) and `mode` for
// a file that O_CREAT makes. Where the file system refuses O_DIRECT (procfs, some FUSE and network
// ones, tmpfs before Linux 6.6) it opens buffered and calls `announce`, which may be empty. The
// announcement names the folder, so it is the same text for all its files: a caller that opens many
// keeps the first. Other failures: the errno's status, naming the file.
absl::StatusOr<DirectFile> OpenDirect(const std::string& path, int flags,
                                      const Announce& announce = {}, mode_t mode = 0644);

}  // namespace spillway::io

#endif  // SPILLWAY_IO_DIRECT_FILE_H_
