// SPDX-License-Identifier: Apache-2.0

#include "io/file_table.h"

#include <fcntl.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace spillway::io {

absl::StatusOr<FileId> FileTable::Add(int fd, std::string path, uint16_t device) {
  if (::fcntl(fd, F_GETFD) < 0) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": descriptor ", fd, " is not open"));
  }
  auto free =
      std::find_if(files_.begin(), files_.end(), [](const File& file) { return file.fd < 0; });
  if (free == files_.end()) free = files_.insert(files_.end(), File{});
  *free = File{fd, std::move(path), device};
  return FileId{static_cast<int32_t>(free - files_.begin())};
}

absl::Status FileTable::Remove(FileId file) {
  if (!Holds(file)) return absl::NotFoundError(absl::StrCat("no file has the id ", file.value));
  files_[static_cast<size_t>(file.value)] = File{};
  while (!files_.empty() && files_.back().fd < 0) files_.pop_back();
  return absl::OkStatus();
}

bool FileTable::Holds(FileId file) const {
  return file.value >= 0 && file.value < end() && files_[static_cast<size_t>(file.value)].fd >= 0;
}

int FileTable::fd(FileId file) const {
  return Holds(file) ? files_[static_cast<size_t>(file.value)].fd : -1;
}

uint16_t FileTable::device(FileId file) const {
  return Holds(file) ? files_[static_cast<size_t>(file.value)].device : uint16_t{0};
}

size_t FileTable::num_devices() const {
  size_t devices = 0;
  for (const File& file : files_) {
    if (file.fd >= 0) devices = std::max(devices, size_t{file.device} + 1);
  }
  return devices;
}

std::string_view FileTable::path(FileId file) const {
  return Holds(file) ? std::string_view(files_[static_cast<size_t>(file.value)].path)
                     : "(unknown file)";
}

}  // namespace spillway::io
