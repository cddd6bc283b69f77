// SPDX-License-Identifier: Apache-2.0
//
// Opens files for transfers that bypass the page cache: with O_DIRECT if the file system supports
// it, otherwise buffered, which is reported to the caller. IoEngine reads and writes the files.

#ifndef SPILLWAY_IO_DIRECT_FILE_H_
#define SPILLWAY_IO_DIRECT_FILE_H_

#include <sys/types.h>

#include <functional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"

namespace spillway::io {

// Receives one sentence that says what the machine does not support and what is used instead.
using Announce = std::function<void(std::string_view)>;

// An open file, closed on destruction. Move-only. It may be used on any thread.
class DirectFile {
 public:
  DirectFile() = default;
  DirectFile(int fd, bool is_direct, std::string path)
      : fd_(fd), is_direct_(is_direct), path_(std::move(path)) {}
  DirectFile(DirectFile&& other) noexcept { *this = std::move(other); }
  DirectFile& operator=(DirectFile&& other) noexcept;
  ~DirectFile() { Close(); }

  int fd() const { return fd_; }  // -1: no open file
  // False if the file system refused O_DIRECT: transfers then go through the page cache.
  bool is_direct() const { return is_direct_; }
  const std::string& path() const { return path_; }

  void Close();

 private:
  int fd_ = -1;
  bool is_direct_ = false;
  std::string path_;
};

// Opens `path` with `flags` (O_RDWR, O_CREAT, ...; O_DIRECT and O_CLOEXEC are added). `mode` is for
// a file that O_CREAT creates. If the file system refuses O_DIRECT (procfs, some FUSE and network
// file systems, tmpfs before Linux 6.6), opens the file buffered and calls `announce`, which may be
// empty. The announcement names the folder, so its text is the same for all files of the folder: a
// caller that opens many files can keep the first and ignore the rest. Other failures return the
// errno's status, which names the file.
absl::StatusOr<DirectFile> OpenDirect(const std::string& path, int flags,
                                      const Announce& announce = {}, mode_t mode = 0644);

}  // namespace spillway::io

#endif  // SPILLWAY_IO_DIRECT_FILE_H_
