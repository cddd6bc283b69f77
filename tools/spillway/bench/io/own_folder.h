// SPDX-License-Identifier: Apache-2.0
//
// The folder that holds a benchmark's files while it runs.

#ifndef SPILLWAY_TOOLS_SPILLWAY_BENCH_IO_OWN_FOLDER_H_
#define SPILLWAY_TOOLS_SPILLWAY_BENCH_IO_OWN_FOLDER_H_

#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "src/base/errno_status.h"

namespace spillway::bench_io {

// Removes the folders that killed benchmarks left in `parent`: those with OwnFolder's name pattern
// whose scratch store no process has open.
void RemoveLeftovers(const std::string& parent);

// A new folder in a folder of the user's. The destructor removes it if it is empty.
class OwnFolder {
 public:
  static absl::StatusOr<OwnFolder> Make(const std::string& parent) {
    RemoveLeftovers(parent);
    std::string path = absl::StrCat(parent, "/spillway-bench-XXXXXX");
    if (::mkdtemp(path.data()) == nullptr) {
      return base::ErrnoToStatus(errno, absl::StrCat("making a folder in ", parent));
    }
    return OwnFolder(path);
  }
  OwnFolder(OwnFolder&& other) noexcept : path_(std::exchange(other.path_, "")) {}
  OwnFolder& operator=(OwnFolder&&) = delete;
  ~OwnFolder() {
    if (!path_.empty()) ::rmdir(path_.c_str());  // the store has removed its own files
  }
  const std::string& path() const { return path_; }

 private:
  explicit OwnFolder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace spillway::bench_io

#endif  // SPILLWAY_TOOLS_SPILLWAY_BENCH_IO_OWN_FOLDER_H_
