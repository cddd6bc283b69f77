// SPDX-License-Identifier: Apache-2.0
//
// The files of one IoEngine: a table from FileId to descriptor, path and device. It opens and
// closes no files.

#ifndef SPILLWAY_IO_FILE_TABLE_H_
#define SPILLWAY_IO_FILE_TABLE_H_

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "io/io_engine.h"

namespace spillway::io {

// Ids are dense from zero; ids of removed files are reused. Thread-compatible.
class FileTable {
 public:
  // InvalidArgument if fd is not an open descriptor.
  absl::StatusOr<FileId> Add(int fd, std::string path, uint16_t device);
  // NotFound if there is no such file.
  absl::Status Remove(FileId file);

  int fd(FileId file) const;           // -1 if there is no such file
  uint16_t device(FileId file) const;  // 0 if there is no such file
  std::string_view path(FileId file) const;
  size_t num_devices() const;  // one more than the largest device in use
  // One more than the largest id in use.
  int end() const { return static_cast<int>(files_.size()); }

 private:
  struct File {
    int fd = -1;
    std::string path;
    uint16_t device = 0;
  };
  bool Holds(FileId file) const;

  std::vector<File> files_;
};

}  // namespace spillway::io

#endif  // SPILLWAY_IO_FILE_TABLE_H_
