// SPDX-License-Identifier: Apache-2.0

#include "io/file_table.h"

#include <fcntl.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace spillway::io {

absl::StatusOr<FileId> FileTable::Add(int fd, std::string path) {
  if (::fcntl(fd, F_GETFD) < 0) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": descriptor ", fd, " is not open"));
  }
  auto free =
      std::find_if(files_.begin(), files_.end(), [](const File& file) { return file.fd < 0; });
  if (free == files_.end()) free = files_.insert(files_.end(), File{});
  *free = File{fd, std::move(path)};
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

std::string_view FileTable::path(FileId file) const {
  return Holds(file) ? std::string_view(files_[static_cast<size_t>(file.value)].path)
                     : "(unknown file)";
}

}  // namespace spillway::io
