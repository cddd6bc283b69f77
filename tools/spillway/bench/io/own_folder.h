// SPDX-License-Identifier: Apache-2.0
//
// The folder that holds a benchmark's files while it runs.

#ifndef SPILLWAY_TOOLS_SPILLWAY_BENCH_IO_OWN_FOLDER_H_
#define SPILLWAY_TOOLS_SPILLWAY_BENCH_IO_OWN_FOLDER_H_

#include <unistd.h>

#include <string>
#include <utility>

#include "absl/status/statusor.h"

namespace spillway::bench_io {

// Removes the folders that killed benchmarks left in `parent`: those with OwnFolder's name pattern
// that no OwnFolder holds, if they are empty but for a scratch store that no process has open.
void RemoveLeftovers(const std::string& parent);

// A new folder in a folder of the user's, which it holds by a lock. The destructor removes it if it
// is empty.
class OwnFolder {
 public:
  static absl::StatusOr<OwnFolder> Make(const std::string& parent);
  OwnFolder(OwnFolder&& other) noexcept
      : path_(std::exchange(other.path_, "")), lock_fd_(std::exchange(other.lock_fd_, -1)) {}
  OwnFolder& operator=(OwnFolder&&) = delete;
  ~OwnFolder() {
    if (!path_.empty()) ::rmdir(path_.c_str());  // the store has removed its own files
    if (lock_fd_ >= 0) ::close(lock_fd_);
  }
  const std::string& path() const { return path_; }

 private:
  OwnFolder(std::string path, int lock_fd) : path_(std::move(path)), lock_fd_(lock_fd) {}
  std::string path_;
  int lock_fd_;  // the folder, locked; not locked where the file system has no locks
};

}  // namespace spillway::bench_io

#endif  // SPILLWAY_TOOLS_SPILLWAY_BENCH_IO_OWN_FOLDER_H_
